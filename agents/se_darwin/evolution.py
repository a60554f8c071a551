"""The search: propose many, choose few, run them in the jail, keep what is worth keeping."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from agents.se_darwin.archive import Archive
from agents.se_darwin.edits import Edit
from agents.se_darwin.evaluation import Evaluation
from agents.se_darwin.features import Fields, Step, StepFeatures, observe
from agents.se_darwin.operators import recombine, refine, revise
from agents.se_darwin.policy import Choice, Policy, Ranker, choose_ranked, choose_weighted
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.tasks import RepairTask

RECOMBINATION_CHANCE = 0.2
REFINEMENT_CHANCE = 0.1
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
        if self.child.fixed:
            return "fixed"
        change = self.child.score - self.parent.score
        return "better" if change > 0 else "worse" if change < 0 else "same"


class Evolution:
    """Evolves one task's program.

    Args:
        task: What to repair.
        sandbox: Where candidates run.
        rng: Source of chance.
        policy: Which candidates are run.

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
    ) -> None:
        self._task, self._sandbox, self._rng, self._policy = task, sandbox, rng, policy
        self._tried: set[frozenset[Edit]] = {frozenset()}
        self._prospects: dict[Evaluation, _Prospects] = {}
        [root] = self._run([(frozenset(), task.space.source)], coverage=True)
        self.archive = Archive(root)
        self.evaluations = 0

    def generation(self, most: int | None = None) -> list[Outcome]:
        """Run one batch of candidates from one parent.

        Args:
            most: At most so many candidates.

        Returns:
            What was run; empty when that parent has no candidate left, which counts against it.
        """
        parent = self.archive.choose_parent(self._rng)
        prospects = self._prospects_of(parent)
        steps = self._propose(parent, prospects)
        chosen: list[tuple[Step, Choice, str]] = []
        for choice in self._choose(
            prospects, steps, min(self._policy.batch, most or self._policy.batch)
        ):
            step = steps[choice.index]
            self._tried.add(step.edits)
            source = self._task.space.program(step.edits)
            if self.archive.claim(source):
                chosen.append((step, choice, source))
        if not chosen:
            self.archive.count_attempt(parent)
            return []
        children = self._run([(step.edits, source) for step, _, source in chosen])
        self.evaluations += len(children)
        outcomes = []
        for (step, choice, _), child in zip(chosen, children, strict=True):
            self.archive.add(child, parent)
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

    def _propose(self, parent: Evaluation, prospects: _Prospects) -> list[Step]:
        """Steps not tried yet, all of one operator."""
        draw = self._rng.random()
        steps: list[Step] = []
        if draw < RECOMBINATION_CHANCE:
            mate = self.archive.choose_mate(self._rng, parent)
            steps = recombine(parent.edits, mate.edits) if mate else []
        elif draw < RECOMBINATION_CHANCE + REFINEMENT_CHANCE:
            steps = refine(parent.edits)
        untried = [step for step in steps if step.edits not in self._tried]
        return untried or [step for step in prospects.revisions if step.edits not in self._tried]

    def _choose(self, prospects: _Prospects, steps: list[Step], count: int) -> list[Choice]:
        ranker, epsilon = self._policy.ranker, self._policy.epsilon
        if ranker is None:
            weights = [prospects.weight(step) for step in steps]
            return choose_weighted(self._rng, weights, count, epsilon)
        order = prospects.rank(ranker, steps)
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
        self.revisions = revise(task.space, parent.edits)
        self._alternatives = Counter(edit.node for edit in task.space.edits)
        self._places: dict[frozenset[Edit], int] = {}

    def rank(self, ranker: Ranker, steps: list[Step]) -> list[int]:
        """Positions in *steps*, best first; revisions are ranked once for all generations."""
        if not steps or steps[0].operator != "revision":
            return self._order(ranker, steps)
        if not self._places:
            order = self._order(ranker, self.revisions)
            self._places = {self.revisions[index].edits: place for place, index in enumerate(order)}
        return sorted(range(len(steps)), key=lambda index: self._places[steps[index].edits])

    def _order(self, ranker: Ranker, steps: list[Step]) -> list[int]:
        actions = [self.features.describe(step) for step in steps]
        return ranker.rank(self.observation, actions) if actions else []

    def weight(self, step: Step) -> float:
        """Suspiciousness, shared out among the edits of the same node."""
        return sum(
            (self.features.suspicion(edit.line) ** 2 + LEAST_WEIGHT) / self._alternatives[edit.node]
            for edit in step.changed
        )
