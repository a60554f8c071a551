from dataclasses import replace

import pytest

from infrastructure.precision_lab.results import CellSummary
from infrastructure.precision_lab.sweep.plan import Cell
from infrastructure.precision_lab.sweep.progress import Progress

CELLS = [Cell(0, "slow"), Cell(0, "fast"), Cell(1, "slow"), Cell(1, "fast")]
SUMMARY = CellSummary(
    preset="slow",
    seed=0,
    category="completed",
    updates=10,
    planned_updates=10,
    seconds=40.0,
    cpu_seconds=40.0,
)


def test_time_left_follows_the_speed_of_each_preset() -> None:
    lines, now = [], [0.0]
    progress = Progress(CELLS, 10, 2, lines.append, lambda: now[0])
    assert progress.seconds_left() is None
    progress.keep(CELLS[0], SUMMARY)
    assert progress.seconds_left() == pytest.approx(3 * 40 / 2)  # the others as slow
    progress.end(CELLS[1], replace(SUMMARY, preset="fast", seconds=10.0))
    assert progress.seconds_left() == pytest.approx((40 + 10) / 2)
    progress.step(CELLS[2], 5)
    assert progress.seconds_left() == pytest.approx((20 + 10) / 2)
    assert lines == ["[2 of 4 cells, 25 s left] fast seed 0: completed in 10.0 s"]
    now[0] = 20.0
    progress.step(CELLS[2], 6)
    assert lines[1:] == ["[2 of 4 cells, 13 s left] slow seed 1: update 6 of 10"]
    failed = replace(SUMMARY, category="nan_loss", reason="step 3: the loss is nan")
    progress.end(CELLS[2], failed)
    assert lines[-1].endswith("slow seed 1: nan_loss in 40.0 s (step 3: the loss is nan)")
