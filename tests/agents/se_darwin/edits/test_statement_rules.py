import pytest

from agents.se_darwin.edits import EditSpace

SOURCE = """
def solve(items):
    total = 0
    best = total
    for item in items:
        if item > 3:
            break
        total += item
    if total:
        return total
    return best
"""


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("loop_exit", "break", "continue"),
        ("assignment", "total += item", "total = item"),
        ("assignment", "best = total", "best += total"),
        ("statement_order", "total = 0\n    best = total", "best = total\n    total = 0"),
        ("return_value", "return total\n    return best", "return best\n    return total"),
    ],
)
def test_statements_are_edited(kind: str, before: str, after: str) -> None:
    space = EditSpace(SOURCE, "solve")
    assert before in space.source
    programs = [space.program([edit]) for edit in space.edits if edit.kind == kind]
    assert space.source.replace(before, after) in programs


def test_what_has_no_neighbour_is_not_exchanged() -> None:
    space = EditSpace("def solve(x):\n    x = 1\n    return x", "solve")
    assert {edit.kind for edit in space.edits}.isdisjoint({"statement_order", "return_value"})


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("statement_removed", "        total += item\n", ""),
        ("branch_unwrapped", "    if total:\n        return total\n", "    return total\n"),
        ("branch_kind", "if total:", "while total:"),
        (
            "statement_copied",
            "        total += item\n",
            "        total += item\n        total = 0\n",
        ),
        (
            "statement_guarded",
            "        total += item\n",
            "        if item > 3:\n            total += item\n",
        ),
        ("return_kind", "best = total", "return total"),
        ("exit_added", "total += item", "total += item\n        break"),
        ("update_added", "total += item", "total += item\n        total += 1"),
        ("container", "total = 0", "total = []"),
        (
            "guard_added",
            "    total = 0\n    b",
            "    if not items:\n        return best\n    total = 0\n    b",
        ),
    ],
)
def test_statements_are_inserted_removed_and_moved(kind: str, before: str, after: str) -> None:
    space = EditSpace(SOURCE, "solve")
    assert before in space.source
    programs = [space.program([edit]) for edit in space.edits if edit.kind == kind]
    assert space.source.replace(before, after) in programs


def test_no_exit_of_a_loop_leaves_the_loop() -> None:
    source = "def solve(x):\n    while x:\n        x -= 1\n        break\n    return x"
    space = EditSpace(source, "solve")
    assert not [
        edit for edit in space.edits if (edit.old, edit.new) == ("break", "after its block")
    ]
    for edit in space.edits:
        compile(space.program([edit]), "edited", "exec")
