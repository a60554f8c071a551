from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agents.se_darwin.features import Fields
from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.ranking import first_fix, places, rank_of_first, report
from benchmarks.se_darwin.foreign.singles import record

BUG = ForeignBug(
    source="handwritten",
    name="larger",
    code="def larger(a, b):\n    if a < b:\n        return a\n    return b\n",
    function="larger",
    test_code=(
        "from program import larger\n\n\ndef test_larger():\n"
        "    assert larger(1, 2) == 2\n    assert larger(3, 1) == 3\n    assert larger(1, 1) == 1\n"
    ),
    hidden_test_code="",
)


class PrefersComparisons:
    """Ranks the right kind of edit first."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        return [0.9 if action["kind"] == "comparison" else 0.1 for action in actions]


def test_a_tie_costs_what_chance_makes_of_it() -> None:
    assert rank_of_first([3.0, 2.0, 1.0], [False, True, True]) == 2.0
    assert rank_of_first([1.0, 1.0, 1.0], [False, True, False]) == 2.0
    assert rank_of_first([2.0, 1.0, 1.0], [False, True, True]) == pytest.approx(2.0)
    assert places([5.0, 9.0, 5.0]) == [1.5, 0.0, 1.5]


@pytest.mark.process
def test_a_bug_is_run_once_and_ranked_from_its_record(tmp_path: Path) -> None:
    ran = record(BUG, tmp_path)
    assert any(ran.fixes)
    assert not all(ran.fixes)
    again = record(BUG, tmp_path, seconds=0.0)
    assert [again.passed, again.given.passed] == [ran.passed, ran.given.passed]
    row = first_fix(again, PrefersComparisons())
    assert row.ranks["model"] < row.ranks["suspicion"]
    assert row.ranks["model"] <= row.ranks["mean"]
    assert row.ranks["random"] == pytest.approx((row.edits + 1) / (row.fixes + 1))
    assert f"| `all` | 1 | {row.ranks['model']:.1f}" in report([row])
