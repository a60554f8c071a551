from __future__ import annotations

import pytest

from agents.se_darwin.edits import EditSpace


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        ("term_added", "return a * a", "return a * a / b"),
        ("term_added", "return len(a + a)", "return len((a + a) * b)"),
        ("term_added", "return [c for c in a]", "return [c * b for c in a]"),
        ("argument_added", "return zip(a)", "return zip(b, a)"),
        ("argument_added", "return zip(a)", "return zip(a, b)"),
        ("argument_added", "return zip(f(a))", "return zip(f(a), f(b))"),
        ("index_added", "return sorted(a)", "return sorted(a[:b])"),
        ("index_added", "return a", "return a[b]"),
        (
            "term_added",
            "if b < 0:\n        raise ValueError\n    return a",
            "if b < 0:\n        raise ValueError\n    return a * b",
        ),
        ("value_replaced", "return a.x", "return b"),
    ],
)
def test_what_is_never_read_is_used(kinds_that_repair, kind: str, broken: str, right: str) -> None:
    frame = "def solve(a, b):\n    {}"
    assert kind in kinds_that_repair(frame.format(broken), frame.format(right))


def test_where_everything_is_read_nothing_is_proposed() -> None:
    space = EditSpace("def solve(self, a, b):\n    return f(a * b)", "solve")
    assert not any(edit.old.startswith("unused") for edit in space.edits)
