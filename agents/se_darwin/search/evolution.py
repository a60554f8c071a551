"""The search loop: propose candidates, choose a few, run them in the sandbox, archive them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from agents.se_darwin.edits import Edit
from agents.se_darwin.features import Fields, Step, StepFeatures, observe
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.archive import Archive
from agents.se_darwin.search.operators import refine
from agents.se_darwin.search.policy import (
    Choice,
    Policy,
    Ranker,
    choose_ranked,
    choose_weighted,
    decay_ranks,
)
from agents.se_darwin.search.proposer import EditProposer, Proposer
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation, label_outcome

MIN_WEIGHT = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A step that was run.

    Attributes:
        step: The step.
        observation: Observation fields of the parent.
        action: Action fields of the step.
        propensity: Probability with which the policy chose the step.
        parent: Program to which the step was applied.
        child: Program that the step made.
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
        return label_outcome(self.parent, self.child)


class Evolution:
    """Evolves one task's program.

    Args:
        task: Program to repair and its tests.
        sandbox: Sandbox in which candidates run.
        rng: Random generator.
        policy: Policy that chooses the candidates to run.
        proposer: Source of candidates; an `EditProposer` by default.

    Attributes:
        archive: Programs that were kept.
        evaluations: Number of candidates run so far.
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
        self._neighbourhoods: dict[Evaluation, _Neighbourhood] = {}
        self._failures: Counter[int] = Counter()
        [root] = self._run([(frozenset(), task.space.source)], coverage=True)
        self.archive = Archive(root)
        self.evaluations = 0

    def run_generation(self, max_candidates: int | None = None) -> list[Outcome]:
        """Run one batch of candidates from one parent.

        Args:
            max_candidates: Upper limit besides the policy's batch, or None.

        Returns:
            The steps that were run; empty if the parent had no untried candidate. Such a parent is
            not selected again.
        """
        parent = self.archive.choose_parent(self._rng)
        if parent is None:
            return []
        neighbourhood = self._neighbourhood_of(parent)
        steps = self._proposer.propose(parent, self.archive, self._rng)
        if not steps:
            self.archive.exhaust(parent)
        chosen: list[tuple[Step, Choice, str]] = []
        count = min(self._policy.batch, max_candidates or self._policy.batch)
        for choice in self._choose(neighbourhood, steps, count):
            step = steps[choice.index]
            source = self._task.space.program(step.edits)
            if self.archive.register(step.edits, source):
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
                    observation=neighbourhood.observation,
                    action=neighbourhood.features.describe(step),
                    propensity=choice.propensity,
                    parent=parent,
                    child=child,
                )
            )
        return outcomes

    def minimise(self, repaired: Evaluation) -> Evaluation:
        """Remove edits that the repair does not need, one at a time, until every edit is needed."""
        for step in refine(repaired.edits):
            source = self._task.space.program(step.edits)
            [child] = self._run([(step.edits, source)])
            self.evaluations += 1
            if child.score >= repaired.score:
                return self.minimise(child)
        return repaired

    def _choose(self, neighbourhood: _Neighbourhood, steps: list[Step], count: int) -> list[Choice]:
        ranker, epsilon = self._policy.ranker, self._policy.epsilon
        if ranker is None:
            weights = [1.0] * len(steps)
            if not self._policy.uniform:
                weights = [neighbourhood.weight(step, self._failures) for step in steps]
            return choose_weighted(self._rng, weights, count, epsilon)
        order = neighbourhood.rank(ranker, steps)
        if self._policy.node_decay:
            failures = [sum(self._failures[e.node] for e in step.changed) for step in steps]
            order = decay_ranks(order, failures)
        return choose_ranked(self._rng, order, count, epsilon)

    def _neighbourhood_of(self, parent: Evaluation) -> _Neighbourhood:
        if parent not in self._neighbourhoods:
            covered = parent
            if parent.edits:  # the root has been run with coverage
                [covered] = self._run([(parent.edits, parent.source)], coverage=True)
            self._neighbourhoods[parent] = _Neighbourhood(self._task, parent, covered)
        return self._neighbourhoods[parent]

    def _run(
        self, programs: list[tuple[frozenset[Edit], str]], *, coverage: bool = False
    ) -> list[Evaluation]:
        return self._task.evaluate(self._sandbox, programs, coverage=coverage)


class _Neighbourhood:
    """The candidates that one step from a parent can make: their features and ranks."""

    def __init__(self, task: RepairTask, parent: Evaluation, covered: Evaluation) -> None:
        self.observation = observe(task.space, parent)
        self.features = StepFeatures(task.space, covered)
        self._alternatives = Counter(edit.node for edit in task.space.edits)
        self._ranks: dict[frozenset[Edit], int] = {}

    def rank(self, ranker: Ranker, steps: list[Step]) -> list[int]:
        """Return positions in *steps*, best first; the ranks of the largest set are cached."""
        if all(step.edits in self._ranks for step in steps):
            return sorted(range(len(steps)), key=lambda index: self._ranks[steps[index].edits])
        order = ranker.rank(self.observation, [self.features.describe(step) for step in steps])
        if len(steps) > len(self._ranks):
            self._ranks = {steps[index].edits: rank for rank, index in enumerate(order)}
        return order

    def weight(self, step: Step, failures: Counter[int]) -> float:
        """Suspiciousness, divided among a node's edits and reduced by failures at the node."""
        return sum(
            (self.features.suspiciousness(edit.line) ** 2 + MIN_WEIGHT)
            / (self._alternatives[edit.node] * (1 + failures[edit.node]))
            for edit in step.changed
        )
