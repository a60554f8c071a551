from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.effects import measure_effects
from agents.se_darwin.features import NUMBERS, Fields
from agents.se_darwin.sandbox import Sandbox, TestCase
from agents.se_darwin.search.evolution import Evolution, StepResult
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.search.ranker import RandomRanker, Ranker, SuspicionRanker
from agents.se_darwin.tasks import RepairTask

REPAIRS = {("comparison", "Lt", "LtE"), ("constant", "1", "0")}


class KnowsTheAnswer:
    """A ranker that prefers the two right edits."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        return [0.4 if self._is_right(action) else 0.001 for action in actions]

    @staticmethod
    def _is_right(action: Fields) -> bool:
        tokens = action["tokens"]
        assert isinstance(tokens, Sequence)
        return any(f"{kind} {old}>{new}" in tokens for kind, old, new in REPAIRS)


def run_out(evolution: Evolution, most: int) -> list[StepResult]:
    outcomes: list[StepResult] = []
    while evolution.evaluations < most and not evolution.archive.best.fixed:
        outcomes += evolution.run_generation(most - evolution.evaluations)
    return outcomes


@pytest.mark.parametrize("seed", range(2))
def test_a_program_with_two_faults_is_repaired(
    sandbox: Sandbox, two_faults: RepairTask, seed: int
) -> None:
    evolution = Evolution(two_faults, sandbox, Random(seed), policy=Policy())
    run_out(evolution, 1500)
    repaired = evolution.minimise(evolution.archive.best)
    assert repaired.fixed
    assert two_faults.hidden_pass_rate(sandbox, repaired.source) == 1.0


def test_the_same_seed_gives_the_same_search(sandbox: Sandbox, two_faults: RepairTask) -> None:
    runs = [
        [
            (outcome.child.source, outcome.propensity, outcome.label)
            for outcome in run_out(Evolution(two_faults, sandbox, Random(5), policy=Policy()), 60)
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_the_budget_of_candidates_holds(sandbox: Sandbox, two_faults: RepairTask) -> None:
    evolution = Evolution(two_faults, sandbox, Random(1), policy=Policy())
    assert len(run_out(evolution, 150)) == evolution.evaluations <= 150


def test_the_last_generation_is_as_small_as_the_time_left_asks(
    sandbox: Sandbox, two_faults: RepairTask
) -> None:
    evolution = Evolution(two_faults, sandbox, Random(1), policy=Policy())
    run_out(evolution, 150)
    assert len(evolution.run_generation()) > 2
    assert len(evolution.run_generation(seconds=0.0)) == 2
    assert evolution.run_generation(seconds=-2.0) == []


@pytest.mark.parametrize(("checks", "edits"), [(3, 2), (6, 3)])
def test_few_checks_allow_few_edits(sandbox: Sandbox, checks: int, edits: int) -> None:
    calls = [((1, 2), 10), ((2, 1), 20), ((3, 3), 30)]
    tests = [TestCase.returning(arguments, value) for arguments, value in calls]
    task = RepairTask(
        name="add",
        function="solve",
        module=None,
        space=EditSpace("def solve(a, b):\n    return a + b", "solve"),
        tests=(*tests, *tests)[:checks],
    )
    evolution = Evolution(task, sandbox, Random(1), policy=Policy(epsilon=0.5))
    outcomes = run_out(evolution, 250)
    assert max(len(outcome.step.edits) for outcome in outcomes) == edits


def test_no_program_is_run_twice(sandbox: Sandbox) -> None:
    """Exchanging the operands of ``x + x`` or of ``(1, 1)`` changes nothing."""
    task = RepairTask(
        name="double",
        function="solve",
        module=None,
        space=EditSpace("def solve(x):\n    return x + x + (1, 1)[0]", "solve"),
        tests=(TestCase.returning((3,), 8), TestCase.returning((4,), 0)),
    )
    evolution = Evolution(task, sandbox, Random(0), policy=Policy())
    sources = [task.space.source]
    for _ in range(20):
        sources += [outcome.child.source for outcome in evolution.run_generation()]
    assert len(sources) > 20
    assert evolution.split["duplicates"] > 0
    assert len(set(sources)) == len(sources)


def test_the_ranker_decides_which_candidates_run_first(
    sandbox: Sandbox, two_faults: RepairTask
) -> None:
    policy = Policy(ranker=KnowsTheAnswer(), batch=2)
    evolution = Evolution(two_faults, sandbox, Random(0), policy=policy)
    outcomes = run_out(evolution, 40)
    assert evolution.archive.best.fixed
    assert {(e.kind, e.old, e.new) for o in outcomes[:2] for e in o.step.changed} <= REPAIRS


def test_outcomes_are_labelled_by_what_happened(sandbox: Sandbox, two_faults: RepairTask) -> None:
    evolution = Evolution(two_faults, sandbox, Random(2), policy=Policy())
    outcomes = run_out(evolution, 400)
    for outcome in outcomes:
        change = outcome.child.score - outcome.parent.score
        expected = "better" if change > 0 else "worse" if change < 0 else "same"
        assert outcome.label == ("fixed" if outcome.child.fixed else expected)
        assert len(outcome.action["numbers"]) == len(NUMBERS)  # type: ignore[arg-type]
        assert 0.0 < outcome.propensity <= 1.0
    assert {outcome.label for outcome in outcomes} >= {"worse", "same", "better"}
    assert {outcome.propensity for outcome in outcomes} == {1.0}, "nothing is left to chance"
    later = [outcome.action["numbers"] for outcome in outcomes if outcome.parent.edits]
    assert any(numbers[0] > 0.0 for numbers in later), "lines that children run are known too"  # type: ignore[index]


def test_needless_edits_are_dropped(sandbox: Sandbox, two_faults: RepairTask) -> None:
    evolution = Evolution(two_faults, sandbox, Random(0), policy=Policy())
    space = two_faults.space
    right = frozenset(edit for edit in space.edits if (edit.kind, edit.old, edit.new) in REPAIRS)
    free = [edit for edit in space.edits if edit.node not in {e.node for e in right}]
    programs = [(right | {edit}, space.program(right | {edit})) for edit in free]
    needless = {
        edit.node: edit
        for edit, child in zip(free, two_faults.evaluate(sandbox, programs), strict=True)
        if child.fixed
    }
    edits = right | set(list(needless.values())[:2])
    [bloated] = two_faults.evaluate(sandbox, [(edits, space.program(edits))])
    assert bloated.fixed
    assert evolution.minimise(bloated).edits == right
    assert evolution.split["minimising"] >= 4, "two are dropped, and neither of the others can be"
    assert evolution.evaluations == 0


def test_a_search_ends_when_every_candidate_was_run(sandbox: Sandbox) -> None:
    task = RepairTask(
        name="increment",
        function="solve",
        module=None,
        space=EditSpace("def solve():\n    return None", "solve"),
        tests=(TestCase.returning((), "never"),),
    )
    evolution = Evolution(task, sandbox, Random(0), Policy(batch=10_000))
    while evolution.run_generation():
        pass
    single = {task.space.program({edit}) for edit in task.space.edits} - {task.space.source}
    assert evolution.split["single_edits"] == len(single)
    assert evolution.run_generation() == []


@pytest.mark.parametrize("ranker", [SuspicionRanker(), RandomRanker(), KnowsTheAnswer()])
def test_every_ranker_goes_through_the_same_search(
    sandbox: Sandbox, two_faults: RepairTask, ranker: Ranker
) -> None:
    evolution = Evolution(two_faults, sandbox, Random(0), Policy(ranker=ranker))
    outcomes = run_out(evolution, 60)
    kinds = ("single_edits", "second_edits", "further_edits", "recombinations")
    assert sum(evolution.split[kind] for kind in kinds) == evolution.evaluations == len(outcomes)
    assert len({outcome.child.source for outcome in outcomes}) == len(outcomes)


def test_a_name_that_nothing_defines_is_replaced_first(sandbox: Sandbox) -> None:
    source = """
def solve(items, low):
    total = low
    for item in items:
        if item > low and item % 2 == 0:
            total += seen * 2 + low
    return total - seen
"""
    right = source.replace("seen * 2", "item * 2").replace("- seen", "- item")
    case = TestCase.returning(([4, 3], 1), 1 + 4 * 2 + 1 - 3)
    other = TestCase.returning(([2], 1), 1 + 2 * 2 + 1 - 2)
    task = RepairTask(
        name="names.solve",
        function="solve",
        module=None,
        space=EditSpace(source, "solve"),
        tests=(case, other),
    )
    assert len(task.space.edits) > 300
    evolution = Evolution(task, sandbox, Random(0), policy=Policy(ranker=RandomRanker()))
    run_out(evolution, 60)
    assert evolution.archive.best.source == EditSpace(right, "solve").source


def test_edits_that_change_failing_checks_alone_run_first(sandbox: Sandbox) -> None:
    source = "def larger(a, b):\n    if a < b:\n        return a\n    return b\n"
    calls = [((1, 2), 2), ((3, 1), 3), ((1, 1), 1), ((-2, -2), -2)]
    task = RepairTask(
        name="larger",
        function="larger",
        module=None,
        space=EditSpace(source, "larger"),
        tests=tuple(TestCase.returning(arguments, value) for arguments, value in calls),
    )
    [given] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
    effects = measure_effects(task, sandbox, given, task.space.edits)

    def first_is_likely(seed: int, *, weighs_effects: bool) -> bool:
        policy = Policy(ranker=RandomRanker(), batch=1, weighs_effects=weighs_effects)
        [outcome] = Evolution(task, sandbox, Random(seed), policy).run_generation()
        [effect] = [effects.get(edit) for edit in outcome.step.changed]
        return effect is not None and effect.failing == 1.0 and effect.passing == 0.0

    assert all(first_is_likely(seed, weighs_effects=True) for seed in range(3))
    assert not all(first_is_likely(seed, weighs_effects=False) for seed in range(3))


def test_effects_do_not_hide_the_parts_of_a_repair(
    sandbox: Sandbox, two_faults: RepairTask
) -> None:
    policy = Policy(weighs_effects=True)
    evolution = Evolution(two_faults, sandbox, Random(0), policy)
    run_out(evolution, 1500)
    assert evolution.archive.best.fixed


class KnowsTheFirst:
    """A ranker that knows one of the two right edits, and nothing of others."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        return [
            1.0 if "arithmetic Sub>Add" in str(action["tokens"]) else 0.01 for action in actions
        ]


def test_what_a_second_edit_would_change_is_measured_at_its_parent(sandbox: Sandbox) -> None:
    source = "def solve(x, y):\n    x = x - 1\n    if y < 3:\n        x = x * 2\n    return x\n"
    calls = [((1, 1), 4), ((2, 3), 6), ((2, 5), 3), ((0, 4), 1), ((3, 3), 8)]
    task = RepairTask(
        name="solve",
        function="solve",
        module=None,
        space=EditSpace(source, "solve"),
        tests=tuple(TestCase.returning(arguments, value) for arguments, value in calls),
    )

    def second_is_likely(seed: int, *, weighs_effects: bool) -> bool:
        policy = Policy(ranker=KnowsTheFirst(), batch=1, weighs_effects=weighs_effects)
        evolution = Evolution(task, sandbox, Random(seed), policy)
        [first], [second] = evolution.run_generation(), evolution.run_generation()
        assert first.label == "better"
        assert second.parent is first.child
        [changed] = second.step.changed
        effect = measure_effects(task, sandbox, second.parent, [changed]).get(changed)
        return effect is not None and effect.failing == 1.0 and effect.passing == 0.0

    assert all(second_is_likely(seed, weighs_effects=True) for seed in range(2))
    assert not all(second_is_likely(seed, weighs_effects=False) for seed in range(2))


class DislikesGuards:
    """A ranker that expects anything rather than a guard that raises."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        return [1e-6 if "raise_added" in str(action["tokens"]) else 1.0 for action in actions]


def test_programs_that_each_pass_a_part_are_united_soon(sandbox: Sandbox) -> None:
    source = "def solve(x, items):\n    total = x + items[-1]\n    return total * 2"
    task = RepairTask(
        name="guards.solve",
        function="solve",
        module=None,
        space=EditSpace(source, "solve"),
        tests=(
            TestCase.returning((1, [2]), 6),
            TestCase(arguments=(-1, [2]), kind="raise", expected="ValueError"),
            TestCase(arguments=(1, []), kind="raise", expected="ValueError"),
        ),
    )
    evolution = Evolution(task, sandbox, Random(0), policy=Policy(ranker=DislikesGuards()))
    run_out(evolution, len(task.space.edits) + 30)
    assert evolution.archive.best.fixed
    assert evolution.split["recombinations"]
