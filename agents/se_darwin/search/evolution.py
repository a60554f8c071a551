"""The search loop: choose the most promising candidates, run them in the sandbox, archive them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from agents.se_darwin.edits import Edit
from agents.se_darwin.features import Fields, Step, StepFeatures, observe
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.archive import Archive
from agents.se_darwin.search.frontier import Branch, Choice, Frontier, Neighbourhood
from agents.se_darwin.search.operators import recombine, refine, revise
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation, label_outcome

# experiments
SECOND = 0.5
RATIO_BETTER = 3.0
RATIO_GAIN = 10.0
RATIO_SAME = 0.6
RATIO_WORSE = 0.15
NODE_TURN = 0.0
UNIFORM = 0.0
RECOMBINE = 1.0
POWER = 1.0
ROWS_PER_RUN = 200
KINDS = (
    "single_edits",
    "second_edits",
    "further_edits",
    "recombinations",
    "duplicates",
    "coverage_runs",
)


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

    Attributes:
        archive: Programs that were kept.
        evaluations: Number of candidates run so far.
        split: What was run and what was not, by kind: candidates with a single edit, a second one
            or further ones, unions of two programs; duplicates, which equal a program that was run,
            and were skipped; and programs that were run once more to see which lines they run.
    """

    def __init__(self, task: RepairTask, sandbox: Sandbox, rng: Random, policy: Policy) -> None:
        self._task, self._sandbox, self._rng, self._policy = task, sandbox, rng, policy
        [root] = self._run([(frozenset(), task.space.source)], coverage=True)
        self.archive = Archive(root)
        self.evaluations = 0
        self.split = Counter(dict.fromkeys(KINDS, 0))
        self._ranked_rows = 0
        self._inherited: dict[Edit, float] = {}
        self._frontier = Frontier(self._rank)
        self._frontier.push(Branch(parent=root, prospect=1.0, outlook=1.0))
        self._prospects = {root: 1.0}

    def run_generation(self, max_candidates: int | None = None) -> list[Outcome]:
        """Run one batch of candidates: those that the policy considers most promising.

        Args:
            max_candidates: Upper limit besides the policy's batch, or None.

        Returns:
            The steps that were run; empty if every candidate has been tried.
        """
        count = min(self._policy.batch, max_candidates or self._policy.batch)
        chosen: list[tuple[Choice, str]] = []
        while len(chosen) < count:
            choice = self._frontier.pop(self._rng, self._policy.epsilon)
            if choice is None:
                break
            if not self.archive.is_untried(choice.step.edits):
                continue
            source = self._task.space.program(choice.step.edits)
            if self.archive.register(choice.step.edits, source):
                chosen.append((choice, source))
            else:
                self.split["duplicates"] += 1
        if not chosen:
            return []
        children = self._run([(choice.step.edits, source) for choice, source in chosen])
        self.evaluations += len(children)
        return [
            self._record(choice, child) for (choice, _), child in zip(chosen, children, strict=True)
        ]

    def minimise(self, repaired: Evaluation) -> Evaluation:
        """Remove edits that the repair does not need, one at a time, until every edit is needed."""
        for step in refine(repaired.edits):
            source = self._task.space.program(step.edits)
            [child] = self._run([(step.edits, source)])
            self.evaluations += 1
            if child.score >= repaired.score:
                return self.minimise(child)
        return repaired

    def _record(self, choice: Choice, child: Evaluation) -> Outcome:
        parent, step = choice.branch.parent, choice.step
        kind = min(3, len(step.edits)) - 1 if step.operator == "revision" else 3
        self.split[KINDS[kind]] += 1
        if self.archive.add(child, parent) and not child.fixed:
            share = choice.chance / choice.neighbourhood.total
            prospect = choice.branch.prospect * _update(share, parent, child)
            self._prospects[child] = prospect
            outlook = max(self._inherited.values())
            self._frontier.push(Branch(parent=child, prospect=prospect, outlook=outlook))
            if child.score > parent.score:
                self._recombine(child, choice.neighbourhood)
        return Outcome(
            step=step,
            observation=choice.neighbourhood.observation,
            action=choice.neighbourhood.features.describe(step),
            propensity=choice.propensity,
            parent=parent,
            child=child,
        )

    def _recombine(self, child: Evaluation, neighbourhood: Neighbourhood) -> None:
        """Add the unions of *child* with programs that pass a test which it fails."""
        for mate, prospect in self._prospects.items():
            gains = [t and not o for t, o in zip(mate.passed, child.passed, strict=True)]
            if not any(gains) or not mate.edits:
                continue
            steps = [
                s for s in recombine(child.edits, mate.edits) if self.archive.is_untried(s.edits)
            ]
            if not steps:
                continue
            union = sum(a or b for a, b in zip(mate.passed, child.passed, strict=True))
            chance = RECOMBINE * prospect * (1.0 if union == len(gains) else 0.3)
            self._frontier.push(
                Branch(
                    parent=child,
                    prospect=self._prospects[child],
                    outlook=chance,
                    neighbourhood=Neighbourhood(
                        observation=observe(self._task.space, child),
                        features=neighbourhood.features,
                        ranked=[(chance / len(steps), step) for step in steps],
                    ),
                )
            )

    def _rank(self, branch: Branch) -> Neighbourhood:
        """Rank the revisions of the branch's program."""
        parent, space = branch.parent, self._task.space
        covered = parent
        if parent.edits:  # the root has been run with coverage
            [covered] = self._run([(parent.edits, parent.source)], coverage=True)
            self.split["coverage_runs"] += 1
        observation, features = observe(space, parent), StepFeatures(space, covered)
        steps = revise(space, parent.edits)
        self._rng.shuffle(steps)
        if self._inherited and self._ranked_rows > ROWS_PER_RUN * self.evaluations:
            chances = [self._inherited[edit] for step in steps for edit in step.changed]
        else:
            actions = [features.describe(step) for step in steps]
            chances = self._policy.ranker.success_chances(observation, actions)
            self._ranked_rows += len(steps)
        chances = [c**POWER + UNIFORM / len(chances) for c in chances]
        ranked = sorted(zip(chances, steps, strict=True), key=lambda pair: -pair[0])
        if NODE_TURN:
            turns: Counter[int] = Counter()
            again = []
            for chance, step in ranked:
                [edit] = step.changed
                turns[edit.node] += 1
                again.append((chance * turns[edit.node] ** -NODE_TURN, step))
            ranked = sorted(again, key=lambda pair: -pair[0])
        if not self._inherited:
            self._inherited = {edit: chance for chance, step in ranked for edit in step.changed}
        return Neighbourhood(observation=observation, features=features, ranked=ranked[::-1])

    def _run(
        self, programs: list[tuple[frozenset[Edit], str]], *, coverage: bool = False
    ) -> list[Evaluation]:
        return self._task.evaluate(self._sandbox, programs, coverage=coverage)


def _update(share: float, parent: Evaluation, child: Evaluation) -> float:
    """Return the probability that the step from *parent* to *child* is a part of the repair."""
    change = child.score - parent.score
    if change > 0:
        ratio = RATIO_BETTER + RATIO_GAIN * change / (1.0 - parent.score)
    else:
        ratio = RATIO_SAME if change == 0 else RATIO_WORSE
    odds = SECOND * share * ratio
    return odds / (1.0 - SECOND * share + odds)
