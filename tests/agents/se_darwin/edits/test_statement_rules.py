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
