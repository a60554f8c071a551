from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.features import NUMBERS, Fields, Step
from agents.se_darwin.sandbox import Sandbox, TestCase
from agents.se_darwin.search.archive import Archive
from agents.se_darwin.search.evolution import Evolution, Outcome
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation

REPAIRS = {("comparison", "Lt", "LtE"), ("constant", "1", "0")}


class KnowsTheAnswer:
    """A ranker that puts the two right edits first."""

    def rank(self, observation: Fields, actions: Sequence[Fields]) -> list[int]:
        return sorted(range(len(actions)), key=lambda index: not self._is_right(actions[index]))

    @staticmethod
    def _is_right(action: Fields) -> bool:
        tokens = action["tokens"]
        assert isinstance(tokens, Sequence)
        return any(f"{kind} {old}>{new}" in tokens for kind, old, new in REPAIRS)


def run_out(evolution: Evolution, most: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
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
    for _ in range(60):
        sources += [outcome.child.source for outcome in evolution.run_generation()]
    assert len(sources) > 20
    assert len(set(sources)) == len(sources)


def test_the_ranker_decides_which_candidates_run_first(
    sandbox: Sandbox, two_faults: RepairTask
) -> None:
    policy = Policy(ranker=KnowsTheAnswer(), batch=2, epsilon=1e-9)
    evolution = Evolution(two_faults, sandbox, Random(0), policy=policy)
    outcomes = run_out(evolution, 40)
    assert evolution.archive.best.fixed
    assert {(e.kind, e.old, e.new) for o in outcomes[:2] for e in o.step.changed} <= REPAIRS


def test_outcomes_are_labelled_by_what_happened(sandbox: Sandbox, two_faults: RepairTask) -> None:
    evolution = Evolution(two_faults, sandbox, Random(2), policy=Policy())
    outcomes = run_out(evolution, 120)
    for outcome in outcomes:
        change = outcome.child.score - outcome.parent.score
        expected = "better" if change > 0 else "worse" if change < 0 else "same"
        assert outcome.label == ("fixed" if outcome.child.fixed else expected)
        assert len(outcome.action["numbers"]) == len(NUMBERS)  # type: ignore[arg-type]
        assert 0.0 < outcome.propensity <= 1.0
    assert {outcome.label for outcome in outcomes} >= {"worse", "same", "better"}
    assert len({outcome.propensity for outcome in outcomes}) > 1
    later = [outcome.action["numbers"] for outcome in outcomes if outcome.parent.edits]
    assert any(numbers[0] > 0.0 for numbers in later), "lines that children run are known too"  # type: ignore[index]


def test_all_three_operators_are_used(sandbox: Sandbox, two_faults: RepairTask) -> None:
    used = set()
    for seed in range(4):
        evolution = Evolution(two_faults, sandbox, Random(seed), policy=Policy(batch=4))
        used |= {outcome.step.operator for outcome in run_out(evolution, 200)}
    assert used == {"revision", "recombination", "refinement"}


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
    assert evolution.evaluations >= 4, "two are dropped, and neither of the others can be"


def test_an_exhausted_parent_is_not_selected(sandbox: Sandbox) -> None:
    task = RepairTask(
        name="increment",
        function="solve",
        module=None,
        space=EditSpace("def solve(x):\n    return x - 1", "solve"),
        tests=(TestCase.returning((3,), 8), TestCase.returning((4,), 0)),
    )
    evolution = Evolution(task, sandbox, Random(0), policy=Policy(batch=10_000))
    root = evolution.archive.members[0]
    while evolution.archive.weights()[0]:
        evolution.run_generation()
    assert evolution.archive.choose_parent(Random(0)) is not root


class Backwards:
    """Ranks the last candidate first."""

    def rank(self, observation: Fields, actions: Sequence[Fields]) -> list[int]:
        return sorted(range(len(actions)), reverse=True)


@pytest.mark.parametrize("node_decay", [False, True])
def test_a_ranking_is_cached_and_decays_at_nodes_that_failed(
    sandbox: Sandbox, two_faults: RepairTask, node_decay: bool
) -> None:
    policy = Policy(ranker=Backwards(), batch=1, epsilon=1e-9, node_decay=node_decay)
    evolution = Evolution(two_faults, sandbox, Random(0), policy=policy)
    outcomes = [outcome for _ in range(10) for outcome in evolution.run_generation()]
    tried = [(outcome.parent, edit) for outcome in outcomes for edit in outcome.step.changed]
    assert max(Counter((parent, edit.node) for parent, edit in tried).values()) == 4 - node_decay
    for parent in {parent for parent, _ in tried}:
        order = [two_faults.space.edits.index(edit) for of, edit in tried if of is parent]
        assert order == sorted(order, reverse=True)


class EmptyProposer:
    """Proposes nothing."""

    def propose(self, parent: Evaluation, archive: Archive, rng: Random) -> list[Step]:
        return []


def test_a_search_without_candidates_ends(sandbox: Sandbox, two_faults: RepairTask) -> None:
    evolution = Evolution(two_faults, sandbox, Random(0), Policy(), proposer=EmptyProposer())
    assert evolution.run_generation() == evolution.run_generation() == []
    assert evolution.archive.choose_parent(Random(0)) is None
