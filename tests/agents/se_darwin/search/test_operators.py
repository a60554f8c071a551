from __future__ import annotations

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.search.operators import recombine, refine, revise
from agents.se_darwin.tasks import RepairTask


def edits_of(task: RepairTask, *kinds: str) -> list[frozenset[Edit]]:
    return [frozenset({next(e for e in task.space.edits if e.kind == kind)}) for kind in kinds]


def test_revision_leaves_the_nodes_of_the_lineage_alone(two_faults: RepairTask) -> None:
    [lineage] = edits_of(two_faults, "comparison")
    [own] = lineage
    steps = revise(two_faults.space, lineage)
    assert steps
    for step in steps:
        [added] = step.changed
        assert added.inserts or added.node != own.node
        assert step.edits == lineage | {added}
    skipped = sum(edit.node == own.node and not edit.inserts for edit in two_faults.space.edits)
    assert len(steps) == len(two_faults.space.edits) - skipped


def test_recombination_adds_what_the_other_program_changed(two_faults: RepairTask) -> None:
    first, second = edits_of(two_faults, "comparison", "constant")
    assert recombine(first, second) == tuple(second)
    assert recombine(first | second, second) == ()


def test_recombination_keeps_the_own_edit_of_a_node(two_faults: RepairTask) -> None:
    comparisons = [edit for edit in two_faults.space.edits if edit.kind == "comparison"]
    assert comparisons[0].node == comparisons[1].node
    [constant] = edits_of(two_faults, "constant")
    assert recombine(constant | {comparisons[0]}, frozenset({comparisons[1]})) == ()
    assert recombine(frozenset({comparisons[1]}), constant | {comparisons[0]}) == tuple(constant)


GUARDS = """def solve(x, y):
    if x < 0:
        raise ValueError
    if min(x, y) < 0:
        raise ValueError
    return x - y
"""


def test_two_guards_go_before_one_statement() -> None:
    space = EditSpace("def solve(x, y):\n    return x - y\n", "solve")
    raising = [edit for edit in space.edits if edit.kind == "raise_added"]
    [first] = [edit for edit in raising if "if x < 0" in edit.new]
    second = [edit for edit in raising if edit.new.startswith("if min(x, y) < 0")]
    both = recombine(frozenset({first}), frozenset(second))
    assert both == tuple(second)
    assert first.node == second[0].node
    assert space.program({first, *both}) == EditSpace(GUARDS, "solve").source
    added = {edit for step in revise(space, frozenset({first})) for edit in step.changed}
    assert set(second) <= added
    assert first not in added


def test_refinement_drops_each_edit_once(two_faults: RepairTask) -> None:
    first, second = edits_of(two_faults, "comparison", "constant")
    assert {step.edits for step in refine(first | second)} == {first, second}
    assert refine(first) == []


def test_the_order_of_refinement_is_that_of_the_program(two_faults: RepairTask) -> None:
    """Not that of a set, which differs from process to process."""
    edits = {edit.node: edit for edit in two_faults.space.edits}
    dropped = [next(iter(step.changed)).node for step in refine(frozenset(edits.values()))]
    assert len(dropped) > 5
    assert dropped == sorted(dropped)
