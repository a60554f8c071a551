"""The search: propose many, choose few, run them in the jail, keep what is worth keeping."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from agents.se_darwin.archive import Archive
from agents.se_darwin.edits import Edit
from agents.se_darwin.evaluation import Evaluation, outcome_of
from agents.se_darwin.features import Fields, Step, StepFeatures, observe
from agents.se_darwin.operators import refine
from agents.se_darwin.policy import (
    Choice,
    Policy,
    Ranker,
    choose_ranked,
    choose_weighted,
    decay_places,
)
from agents.se_darwin.proposer import EditProposer, Proposer
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.tasks import RepairTask

LEAST_WEIGHT = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A step that was run.

    Attributes:
        step: What was done.
        observation: Fields of the parent.
        action: Fields of the step.
        propensity: Probability with which the policy chose it.
        parent: What it was done to.
        child: What came of it.
    """

    step: Step
    observation: Fields
    action: Fields
    propensity: float
    parent: Evaluation
    child: Evaluation

    @property
    def label(self) -> str:
        """One of `agents.se_darwin.features.OUTCOMES`."""
        return outcome_of(self.parent, self.child)


class Evolution:
    """Evolves one task's program.

    Args:
        task: What to repair.
        sandbox: Where candidates run.
        rng: Source of chance.
        policy: Which candidates are run.
        proposer: Where candidates come from; small edits by default.

    Attributes:
        archive: What was kept.
        evaluations: Candidates run so far.
    """

    def __init__(
        self,
        task: RepairTask,
        sandbox: Sandbox,
        rng: Random,
        policy: Policy,
        proposer: Proposer | None = None,
    ) -> None:
        self._task, self._sandbox, self._rng, self._policy = task, sandbox, rng, policy
        self._proposer = proposer or EditProposer(task.space)
        self._prospects: dict[Evaluation, _Prospects] = {}
        self._failures: Counter[int] = Counter()
        [root] = self._run([(frozenset(), task.space.source)], coverage=True)
        self.archive = Archive(root)
        self.evaluations = 0

    def generation(self, most: int | None = None) -> list[Outcome]:
        """Run one batch of candidates from one parent.

        Args:
            most: At most so many candidates.

        Returns:
            What was run; empty when that parent had no candidate left, and is chosen no more.
        """
        parent = self.archive.choose_parent(self._rng)
        if parent is None:
            return []
        prospects = self._prospects_of(parent)
        steps = self._proposer.propose(parent, self.archive, self._rng)
        if not steps:
            self.archive.exhaust(parent)
        chosen: list[tuple[Step, Choice, str]] = []
        for choice in self._choose(
            prospects, steps, min(self._policy.batch, most or self._policy.batch)
        ):
            step = steps[choice.index]
            source = self._task.space.program(step.edits)
            if self.archive.claim(step.edits, source):
                chosen.append((step, choice, source))
        if not chosen:
            return []
        children = self._run([(step.edits, source) for step, _, source in chosen])
        self.evaluations += len(children)
        outcomes = []
        for (step, choice, _), child in zip(chosen, children, strict=True):
            self.archive.add(child, parent)
            if child.score <= parent.score:
                self._failures.update(edit.node for edit in step.changed)
            outcomes.append(
                Outcome(
                    step=step,
                    observation=prospects.observation,
                    action=prospects.features.describe(step),
                    propensity=choice.propensity,
                    parent=parent,
                    child=child,
                )
            )
        return outcomes

    def minimise(self, repaired: Evaluation) -> Evaluation:
        """Drop edits that the repair does not need, one at a time, until each one is needed."""
        for step in refine(repaired.edits):
            source = self._task.space.program(step.edits)
            [child] = self._run([(step.edits, source)])
            self.evaluations += 1
            if child.score >= repaired.score:
                return self.minimise(child)
        return repaired

    def _choose(self, prospects: _Prospects, steps: list[Step], count: int) -> list[Choice]:
        ranker, epsilon = self._policy.ranker, self._policy.epsilon
        if ranker is None:
            weights = [prospects.weight(step, self._failures) for step in steps]
            return choose_weighted(self._rng, weights, count, epsilon)
        order = prospects.rank(ranker, steps)
        if self._policy.node_decay:
            failures = [sum(self._failures[e.node] for e in step.changed) for step in steps]
            order = decay_places(order, failures)
        return choose_ranked(self._rng, order, count, epsilon)

    def _prospects_of(self, parent: Evaluation) -> _Prospects:
        if parent not in self._prospects:
            covered = parent
            if parent.edits:  # the root was run with coverage from the start
                [covered] = self._run([(parent.edits, parent.source)], coverage=True)
            self._prospects[parent] = _Prospects(self._task, parent, covered)
        return self._prospects[parent]

    def _run(
        self, programs: list[tuple[frozenset[Edit], str]], *, coverage: bool = False
    ) -> list[Evaluation]:
        return self._task.evaluate(self._sandbox, programs, coverage=coverage)


class _Prospects:
    """What can be done to one parent."""

    def __init__(self, task: RepairTask, parent: Evaluation, covered: Evaluation) -> None:
        self.observation = observe(task.space, parent)
        self.features = StepFeatures(task.space, covered)
        self._alternatives = Counter(edit.node for edit in task.space.edits)
        self._places: dict[frozenset[Edit], int] = {}

    def rank(self, ranker: Ranker, steps: list[Step]) -> list[int]:
        """Positions in *steps*, best first; the many that stay to be tried are ranked once."""
        if all(step.edits in self._places for step in steps):
            return sorted(range(len(steps)), key=lambda index: self._places[steps[index].edits])
        order = ranker.rank(self.observation, [self.features.describe(step) for step in steps])
        if len(steps) > len(self._places):
            self._places = {steps[index].edits: place for place, index in enumerate(order)}
        return order

    def weight(self, step: Step, failures: Counter[int]) -> float:
        """Suspiciousness, shared out among the edits of a node, less where edits have failed."""
        return sum(
            (self.features.suspicion(edit.line) ** 2 + LEAST_WEIGHT)
            / (self._alternatives[edit.node] * (1 + failures[edit.node]))
            for edit in step.changed
        )
