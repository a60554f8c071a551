from __future__ import annotations

import pytest

from agents.se_darwin.edits import EDIT_KINDS
from benchmarks.se_darwin.mining.__main__ import table
from benchmarks.se_darwin.mining.history import FunctionChange
from benchmarks.se_darwin.mining.reach import EXCHANGES, Reach, reach

BEFORE = """def f(a, b):
    c = 0
    for d in a:
        c += d
        if d > b:
            return c
    return c"""


def reached(*replacements: tuple[str, str]) -> Reach | None:
    after = BEFORE
    for old, new in replacements:
        after = after.replace(old, new, 1)
    change = FunctionChange(commit="", path="", function="f", before=BEFORE, after=after)
    return reach(change)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("d > b", "d >= b", "comparison"),
        ("    c = 0\n", "", "statement_removed"),
        ("d > b", "c and d > b", "clause_added"),
        ("in a", "in sorted(a)", "call_added"),
        ("            return c\n", "            break\n", ""),
    ],
)
def test_the_kind_that_makes_a_change_is_found(old: str, new: str, kind: str) -> None:
    found = reached((old, new))
    assert found is not None
    assert found.is_made_by([kind]) is bool(kind)


def test_several_places_need_an_edit_each() -> None:
    found = reached(("d > b", "d >= b"), ("c = 0", "c = 1"))
    assert found is not None
    assert len(found.places) == 2
    assert found.is_made_by(["comparison", "constant"])
    assert not found.is_made_by(["comparison"])
    assert reached() is None
    rows = table([found])
    assert rows[2].endswith("| 1 of 1 |  |")
    assert len(rows) == 4 + len(EDIT_KINDS) - len(EXCHANGES)
