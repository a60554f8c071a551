"""The search loop: choose the most promising candidates, run them in the sandbox, archive them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from math import inf
from random import Random

from agents.se_darwin.edits import Edit
from agents.se_darwin.effects import MAX_SECONDS, Effect, measure_effects, weigh
from agents.se_darwin.features import Fields, Step, StepFeatures, observe
from agents.se_darwin.proposals import Proposals
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.sandbox.server_process import TimeUpError
from agents.se_darwin.search.archive import Archive
from agents.se_darwin.search.frontier import Branch, Choice, Frontier, Neighbourhood
from agents.se_darwin.search.operators import recombine, refine, revise
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation, label_outcome
from infrastructure.agent_contract.proposer import EDITS

# How much likelier an outcome is for one of the edits of a two-edit repair than for another single
# edit: 215 halves of repairs and 2718 other edits of 108 programs with two faults (see
# docs/explanation/se-darwin-search.md, "How it searches").
RATIO_WORSE = 0.15
RATIO_SAME = 0.8
RATIO_BETTER = 3.0
RATIO_GAIN = 30.0
SECOND = 0.5
UNION = 0.5
NODE_TURN = 0.5
FLOOR = 0.1
EFFECTS_SHARE = 0.1  # of the time left, to measure what edits would change
RUN_PER_MEASUREMENT = 100  # candidates; the effects at n further programs cost n * n of them
ROWS_PER_RUN = 100
LEAST_CHANCE = 1e-6
GROWTH = 10  # a generation has a tenth of the candidates that were run before it
MOST_PER_GENERATION = 64
CHECKS_PER_EDIT = 2  # a program with more edits passes few checks by chance
ALWAYS_ALLOWED = 2
GRACE_SECONDS = 1.0
"""Most time by which candidates that are running may exceed that of a generation."""
SPLIT = (
    "single_edits",
    "second_edits",
    "further_edits",
    "recombinations",
    "duplicates",
    "coverage_runs",
    "minimising",
    "proposed",
    "order_dependent",
    "order_runs",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """A step that was run.

    Attributes:
        step: The step.
        observation: Observation fields of the parent.
        action: Action fields of the step.
        propensity: Probability with which the policy chose the step.
        parent: Program to which the step was applied.
        child: Program that the step made.
        proposer: Who proposed it: `EDITS`, or a proposer whose candidate or whose descendant it is.
    """

    step: Step
    observation: Fields
    action: Fields
    propensity: float
    parent: Evaluation
    child: Evaluation
    proposer: str = EDITS

    @property
    def label(self) -> str:
        """One of `agents.se_darwin.features.OUTCOMES`."""
        return label_outcome(self.parent, self.child)


class Evolution:
    """Evolves one task's program, best step first; it may go on after a repair.

    Args:
        task: Program to repair and its tests.
        sandbox: Sandbox in which candidates run.
        rng: Random generator: decides between steps of equal chance, and what is explored.
        policy: Policy that chooses the candidates to run.
        proposals: Proposers besides the edits; None for none.

    Attributes:
        archive: Programs that were kept.
        evaluations: Number of candidates run so far, without those that minimise a repair.
        split: What was run and what was not, by the names in `SPLIT`: candidates with one, two or
            more edits, and unions of two programs; duplicates, which equal a program that was run
            and were skipped; programs that were run once more to see which lines they run;
            programs that were run to minimise a repair; candidates of other proposers; candidates
            that pass every test under one order of sets only; and runs of repairs under another
            order.
        proposals: The proposers.
    """

    def __init__(
        self,
        task: RepairTask,
        sandbox: Sandbox,
        rng: Random,
        policy: Policy,
        *,
        proposals: Proposals | None = None,
    ) -> None:
        self._task, self._sandbox, self._rng, self._policy = task, sandbox, rng, policy
        root = root_of(task, sandbox)
        self.archive = Archive(root)
        self.evaluations = 0
        self.split = dict.fromkeys(SPLIT, 0)
        self.proposals = proposals or Proposals()
        self._root = root
        self._features = {root: StepFeatures(task.space, root)}
        self._weights: dict[Edit, float] = {}
        self._effects: dict[Edit, Effect] = {}
        self._measured = 0
        self._ranked_rows = 0
        self._outlook = 0.0
        self._seconds_left = inf
        self._seconds_each = 0.0
        self._most_edits = most_edits(len(task.tests))
        self._prospects: dict[Evaluation, float] = {}
        self._frontier = Frontier(self._rank)
        self._frontier.push(Branch(parent=root, prospect=1.0, outlook=1.0))

    def run_generation(
        self, max_candidates: int | None = None, *, seconds: float = inf
    ) -> list[StepResult]:
        """Run one generation of candidates: those that are most likely the repair.

        Large generations run faster; they grow so that few are run beyond the first repair. Other
        proposers have their share of each; see `agents.se_darwin.proposals.shares`.

        Args:
            max_candidates: Upper limit, or None.
            seconds: Seconds that are left: no more candidates are run than end by then at the pace
                of the last generation, but at least as many as run at the same time.

        Returns:
            The steps that were run; empty if every candidate has been tried, if only those that
            are awaited are left (see `awaits_proposals`), or if they were cut off.
        """
        with suppress(TimeUpError), self._until(seconds):
            return self._run_likeliest(max_candidates, seconds)
        return []

    def _until(self, seconds: float) -> AbstractContextManager[None]:
        """Cut off what runs in the block soon after *seconds*."""
        return self._sandbox.until(time.monotonic() + seconds + GRACE_SECONDS)

    def _run_likeliest(self, max_candidates: int | None, seconds: float) -> list[StepResult]:
        self._seconds_left = seconds
        self._take_proposals()
        count = max(self._policy.batch, min(MOST_PER_GENERATION, self.evaluations // GROWTH))
        if count * self._seconds_each > seconds:
            count = max(self._policy.batch, int(seconds / self._seconds_each))
        count = min(count, max_candidates or count)
        chosen = self._choose(count)
        if not chosen and self.awaits_proposals:
            self.proposals.wait(seconds)
        return self._run_chosen(chosen)

    def run_proposals(self, *, seconds: float = inf) -> list[StepResult]:
        """Run the candidates of other proposers that have arrived; wait a moment if none has."""
        self._seconds_left = seconds
        self._take_proposals()
        chosen: list[tuple[Choice, str]] = []
        for owner, count in self._frontier.count_waiting().items():
            for _ in range(count):
                choice = self._frontier.pop_proposal(owner)
                if choice is not None and (source := self._new_source(choice)):
                    chosen.append((choice, source))
        if not chosen and self.awaits_proposals:
            self.proposals.wait(seconds)
        with suppress(TimeUpError), self._until(seconds):
            return self._run_chosen(chosen)
        return []

    @property
    def awaits_proposals(self) -> bool:
        """Whether candidates of other proposers may still come."""
        return self.proposals.are_awaited

    @property
    def has_waiting_proposals(self) -> bool:
        """Whether candidates of other proposers have come and wait for their turns."""
        return bool(self.proposals) and bool(self._frontier.count_waiting())

    def _choose(self, count: int) -> list[tuple[Choice, str]]:
        """Return at most *count* steps to run, and the programs that they make."""
        chosen: list[tuple[Choice, str]] = []
        turns = self.proposals.shares.executed()
        while len(chosen) < count and (ready := self._frontier.owners()):
            turn = self.proposals.shares.next(ready, turns)
            choice = self._frontier.pop(self._rng, self._policy.epsilon, turn)
            if choice is not None and (source := self._new_source(choice)):
                chosen.append((choice, source))
                turns[turn] += 1
        return chosen

    def _new_source(self, choice: Choice) -> str:
        """Return the program that *choice* makes, registered; empty if it has been tried."""
        if self.archive.is_untried(choice.step.edits):
            source = self._task.space.program(choice.step.edits)
            if self.archive.register(choice.step.edits, source):
                return source
            self.split["duplicates"] += 1
        if choice.branch.is_proposal:
            self.proposals.drop(choice.branch.owner, "run before")
        return ""

    def _run_chosen(self, chosen: list[tuple[Choice, str]]) -> list[StepResult]:
        if not chosen:
            return []
        programs = [(choice.step.edits, source) for choice, source in chosen]
        began = time.monotonic()
        children = self._task.screen(self._sandbox, programs)
        self._seconds_each = (time.monotonic() - began) / len(children)
        self.evaluations += len(children)
        return [
            self._record(choice, child) for (choice, _), child in zip(chosen, children, strict=True)
        ]

    def _take_proposals(self) -> None:
        """Let the proposals that have arrived wait for their turns, the likeliest first."""
        if not self.proposals.are_awaited:
            return
        taken = self.proposals.take(
            self._task,
            self._root,
            self.archive.best,
            waiting=self._frontier.count_waiting(),
            seconds=self._seconds_left,
        )
        space, features = self._task.space, self._features[self._root]
        modules = {name for batch in taken.values() for each in batch for name in each.modules}
        if modules:
            self._sandbox.import_modules(modules)
        for owner, batch in taken.items():
            steps = [
                Step(operator="revision", changed=proposal.edits, edits=proposal.edits)
                for proposal in batch
            ]
            chances = self._policy.ranker.success_chances(
                observe(space, self._root), [features.describe(step) for step in steps]
            )
            total = sum(chances) or 1.0
            for step, chance in zip(steps, chances, strict=True):
                self._frontier.push(
                    Branch(
                        parent=self._root,
                        prospect=1.0,
                        outlook=max(chance / total, LEAST_CHANCE),
                        added=tuple(step.changed),
                        owner=owner,
                    )
                )

    def minimise(self, repaired: Evaluation) -> Evaluation:
        """Remove edits that the repair does not need, one at a time, until every edit is needed."""
        for step in refine(repaired.edits):
            source = self._task.space.program(step.edits)
            [child] = self._task.screen(self._sandbox, [(step.edits, source)])
            self.split["minimising"] += 1
            self.split["order_runs"] += child.order_runs
            if child.score >= repaired.score:
                return self.minimise(child)
        return repaired

    def _record(self, choice: Choice, child: Evaluation) -> StepResult:
        parent, step, owner = choice.branch.parent, choice.step, choice.branch.owner
        is_proposal, is_union = choice.branch.is_proposal, step.operator == "recombination"
        kind = SPLIT[3 if is_union else min(3, len(step.edits)) - 1]
        self.split["proposed" if is_proposal else kind] += 1
        self.split["order_dependent"] += child.depends_on_order
        self.split["order_runs"] += child.order_runs
        best = self.archive.best.score
        is_kept = self.archive.add(child, parent)
        gain = (self.archive.best.score - best) / ((1.0 - self._root.score) or 1.0)
        self.proposals.count(
            owner,
            child,
            gain,
            is_own=is_proposal or owner == EDITS,
            given=self._root.score,
        )
        gains_nothing = is_proposal and child.score <= parent.score
        if is_kept and not gains_nothing and self._may_grow(child):
            odds = SECOND * choice.chance * _ratio(parent, child)
            self._prospects[child] = choice.branch.prospect * odds / (1.0 + odds)
            self._frontier.push(
                Branch(
                    parent=child,
                    prospect=self._prospects[child],
                    outlook=self._outlook,
                    owner=owner,
                )
            )
            if child.score > parent.score:
                self._recombine(child, owner)
        return StepResult(
            step=step,
            observation=choice.neighbourhood.observation,
            action=choice.neighbourhood.features.describe(step),
            propensity=choice.propensity,
            parent=parent,
            child=child,
            proposer=owner,
        )

    def _recombine(self, child: Evaluation, owner: str) -> None:
        """Add the unions of *child* with programs that pass every test which it fails.

        If both also pass what the given program passes, each seems to be a part of the repair.
        """
        for mate, chance in self._prospects.items():
            if all(map(any, zip(mate.passed, child.passed, strict=True))):
                added = recombine(child.edits, mate.edits)
                union = child.edits.union(added)
                if added and len(union) <= self._most_edits and self.archive.is_untried(union):
                    prospect = self._prospects[child]
                    outlook = UNION if self._keeps(child) and self._keeps(mate) else chance
                    self._frontier.push(
                        Branch(
                            parent=child,
                            prospect=prospect,
                            outlook=outlook,
                            added=added,
                            operator="recombination",
                            owner=owner,
                        )
                    )

    def _may_grow(self, child: Evaluation) -> bool:
        """Whether programs with one more edit than *child* are candidates."""
        has_places = all(edit.node for edit in child.edits)  # not a whole function
        return not child.fixed and has_places and len(child.edits) < self._most_edits

    def _keeps(self, member: Evaluation) -> bool:
        """Whether *member* passes every test that the given program passes."""
        pairs = zip(member.passed, self._root.passed, strict=True)
        return all(passed or not given for passed, given in pairs)

    def _rank(self, branch: Branch) -> Neighbourhood:
        """Rank the steps from the branch's program: its only one, or all revisions."""
        parent, space = branch.parent, self._task.space
        observation, features = observe(space, parent), self._features_of(parent)
        if branch.added:
            return Neighbourhood(
                operator=branch.operator,
                observation=observation,
                features=features,
                ranked=[(branch.outlook, branch.added)],
            )
        steps = revise(space, parent.edits)
        self._rng.shuffle(steps)  # decides between equal chances
        if not self._is_news(parent) or self._ranked_rows > ROWS_PER_RUN * self.evaluations:
            weights = [self._weights[edit] for step in steps for edit in step.changed]
        else:
            actions = [features.describe(step) for step in steps]
            weights = self._policy.ranker.success_chances(observation, actions)
            self._ranked_rows += len(steps)
        edits = [edit for step in steps for edit in step.changed]
        if any(symptom.startswith("NameError") for symptom in parent.symptoms):
            weights = _with_names_first(weights, edits, space.scope.unknown)
        ranked = take_turns(zip(weights, edits, strict=True))
        if not parent.edits:
            self._weights = dict(zip(edits, weights, strict=True))
            self._outlook = ranked[-1][0] if ranked else 0.0
        if self._policy.weighs_effects:
            effects = self._effects_at(parent, [edit for _, [edit] in reversed(ranked)])
            ranked = take_turns(zip(weigh(weights, edits, effects), edits, strict=True))
        return Neighbourhood(
            operator="revision", observation=observation, features=features, ranked=ranked
        )

    def _effects_at(self, parent: Evaluation, best_first: Sequence[Edit]) -> dict[Edit, Effect]:
        """Return what further edits of *parent* would change, as far as that is known.

        It is measured at the given program, and at those whose turn comes when so many candidates
        have been run that the measurement costs little besides; others use what is known.
        """
        if parent.edits:
            if RUN_PER_MEASUREMENT * self._measured**2 > self.evaluations:
                return self._effects
            self._measured += 1
        effects = measure_effects(
            self._task,
            self._sandbox,
            parent,
            best_first,
            seconds=min(MAX_SECONDS, EFFECTS_SHARE * self._seconds_left),
        )
        if not parent.edits:  # what no failing check reaches, another edit may let it reach
            self._effects = {edit: effect for edit, effect in effects.items() if effect.is_reached}
        return self._effects | effects

    def _is_news(self, parent: Evaluation) -> bool:
        """Whether other steps may be likely from *parent* than from the given program."""
        return not parent.edits or parent.score > self._root.score

    def _features_of(self, parent: Evaluation) -> StepFeatures:
        """Features of steps from *parent*: with the lines that its tests run, if it is news."""
        if not self._is_news(parent):
            return self._features[self._root]
        if parent not in self._features:
            program = (parent.edits, parent.source)  # as it is screened, so that all checks end
            [covered] = self._task.within.evaluate(self._sandbox, [program], coverage=True)
            self.split["coverage_runs"] += 1
            self._features[parent] = StepFeatures(self._task.space, covered)
        return self._features[parent]


def root_of(task: RepairTask, sandbox: Sandbox) -> Evaluation:
    """Return the evaluation of the given program, with its lines; run it unless it was run."""
    program = (frozenset[Edit](), task.space.source)
    return task.given or task.within.evaluate(sandbox, [program], coverage=True)[0]


def most_edits(checks: int) -> int:
    """Return how many edits a candidate may have: two, and more if there are many *checks*.

    Programs with more edits often pass few checks by chance, and are wrong elsewhere.
    """
    return max(ALWAYS_ALLOWED, checks // CHECKS_PER_EDIT)


def _with_names_first(
    weights: Sequence[float], edits: Sequence[Edit], unknown: Collection[str]
) -> list[float]:
    """Give half of the weight to edits that replace or set a name which nothing defines.

    No ranker learns that from the corpus, in which every name is defined.
    """
    sets = {f"{name} =" for name in unknown}
    cures = [
        edit.old.partition(",")[0] in unknown
        or (edit.kind == "update_added" and edit.new[: edit.new.find("=") + 1] in sets)
        for edit in edits
    ]
    total = sum(weights)
    share = sum(weight for weight, is_cure in zip(weights, cures, strict=True) if is_cure)
    if not 0.0 < share < total / 2:
        return list(weights)
    factor = (total - share) / share
    return [
        weight * factor if is_cure else weight
        for weight, is_cure in zip(weights, cures, strict=True)
    ]


def take_turns(weighted: Iterable[tuple[float, Edit]]) -> list[tuple[float, tuple[Edit, ...]]]:
    """Return chances, which sum to 1, and edits, in ascending order of chance.

    The k-th edit of a node has its weight divided by the square root of k: if the best ones fail,
    another node is more likely the faulty one.
    """
    turns: Counter[int] = Counter()
    chances = []
    for weight, edit in sorted(weighted, key=lambda pair: -pair[0]):
        turns[edit.node] += 1
        chances.append((weight * turns[edit.node] ** -NODE_TURN, (edit,)))
    total = sum(chance for chance, _ in chances)
    chances.sort(key=lambda pair: -pair[0])
    return [
        ((1.0 - FLOOR) * chance / total + FLOOR / len(chances), edits)
        for chance, edits in reversed(chances)
    ]


def _ratio(parent: Evaluation, child: Evaluation) -> float:
    """Return how much likelier the outcome is for a part of the repair than for another edit."""
    change = child.score - parent.score
    if change > 0:
        return RATIO_BETTER + RATIO_GAIN * change / (1.0 - parent.score)
    return RATIO_WORSE if change < 0 else RATIO_SAME
