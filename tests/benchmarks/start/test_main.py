"""The benchmark of starts: one start, with few records."""

from pathlib import Path

import pytest

from benchmarks.start.__main__ import PHASES, Starts, summarise


@pytest.mark.process
def test_each_phase_is_timed(tmp_path: Path) -> None:
    starts = Starts(tmp_path, "fp32", transitions=4000)
    try:
        assert starts.warm_up() > 100_000  # KiB
        assert starts.record() == 4000
    finally:
        starts.close()
    assert starts.first.keys() == {*PHASES, "submit"} - {"interpreter", "torch", "library"}
    assert all(seconds > 0 for seconds in starts.first.values())


def test_a_column_holds_medians_and_their_sum() -> None:
    cold = [{"torch": 1.0, "first step": s, "submit": 0.5} for s in (1.0, 2.0, 9.0)]
    rows = summarise({"cold": cold, "pre-warmed": [{"first step": 0.25, "submit": 0.125}]})
    by_phase = {row["phase"]: row for row in rows}
    assert by_phase["torch"] == {"phase": "torch", "cold": "1.000", "pre-warmed": "-"}
    assert by_phase["sum"] == {
        "phase": "sum",
        "cold": "3.00 (2.50-6.50)",
        "pre-warmed": "0.25 (0.25-0.25)",
    }
    assert by_phase["submit"]["cold"] == "0.500"
