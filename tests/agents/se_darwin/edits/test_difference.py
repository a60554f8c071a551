from __future__ import annotations

import ast

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.edits.difference import difference, size_of
from agents.se_darwin.edits.edit_space import definition_of

GIVEN = '''
def solve(items, limit):
    """Sum."""
    total, seen = 1, []
    for item in items:
        if item < limit:
            total += item
        else:
            break
    return total
'''


def _edits(changed: str) -> tuple[EditSpace, str, list[tuple[str, str, str]]]:
    space = EditSpace(GIVEN, "solve")
    edits = difference(space, definition_of(ast.parse(changed), "solve"))
    found = sorted((edit.kind, edit.old, edit.new) for edit in edits)
    return space, space.program(edits), found


@pytest.mark.parametrize(
    ("old", "new", "edits"),
    [
        ("item < limit", "item <= limit", [("comparison", "Lt", "LtE")]),  # the space has these two
        ("total += item", "total -= item", [("arithmetic", "Add", "Sub")]),
        ("= 1, []", "= 777, []", [("constant", "1", "777")]),
        ("limit:\n", "limit and item not in seen:\n", None),
        (
            "    return total\n",
            "    if not seen:\n        return 0\n    return total\n",
            [("guard_added", "before", "if not seen: return 0")],
        ),
        ("    for", "    seen.append(limit)\n    for", None),
        ("        else:\n            break\n", "", None),
        ("return total\n", "return total\n    raise ValueError\n", None),
    ],
)
def test_a_change_is_an_edit_of_the_smallest_part(
    old: str, new: str, edits: list[tuple[str, str | None, str]] | None
) -> None:
    changed = GIVEN.replace(old, new)
    assert changed != GIVEN
    space, made, found = _edits(changed)
    assert made == EditSpace(changed, "solve").source
    assert len(found) == 1
    for kind, before, after in edits or ():
        assert found[0][0] == kind
        assert before in (None, found[0][1])
        assert found[0][2] == after
    assert all(edit.node for edit in difference(space, definition_of(ast.parse(changed), "solve")))


def test_changes_at_several_places_can_be_undone_one_by_one() -> None:
    changed = GIVEN.replace("= 1,", "= 0,").replace("<", "<=").replace("break", "continue")
    space = EditSpace(GIVEN, "solve")
    edits = difference(space, definition_of(ast.parse(changed), "solve"))
    assert len(edits) == 3
    assert edits <= set(space.edits), "each is an edit of the space"
    for edit in edits:
        ast.parse(space.program(edits - {edit}))


def test_another_algorithm_or_signature_is_one_edit_of_the_whole_function() -> None:
    lines = "\n".join(f"    total = {number} + item * total" for number in range(20))
    other = (
        f"def solve(items, limit=3, *, more=0):\n    item = total = 0\n{lines}\n    return total\n"
    )
    space = EditSpace(GIVEN, "solve")
    [edit] = difference(space, definition_of(ast.parse(other), "solve"))
    assert edit.node == 0
    assert "limit=3, *, more=0" in space.program([edit])
    assert size_of(space, frozenset([edit])) > 20
    assert space.program([]) == space.source, "the tree is as before"


def test_equal_functions_have_no_difference() -> None:
    space = EditSpace(GIVEN, "solve")
    assert difference(space, definition_of(ast.parse(GIVEN), "solve")) == frozenset()
