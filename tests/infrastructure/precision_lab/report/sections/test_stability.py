"""The stability matrix: a row for each preset, a column for each seed."""

from __future__ import annotations

from pathlib import Path

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.stability import stability
from tests.infrastructure.precision_lab.report.results_folder import write_cell, write_sweep


def test_each_training_has_its_ending(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    section = stability(read_results(tmp_path))
    (table,) = section.tables
    assert table.head[:3] == ["preset", "seed 0", "seed 1"]
    assert [row[:3] for row in table.rows] == [
        ["fp32_baseline", "completed", "completed"],
        ["bf16_pure", "nan_loss at update 7", "completed"],
        ["bf16_fp32_kl", "completed", "completed"],
    ]
    assert table.tone(1, 1) == "bad"
    assert table.tone(1, 2) == "good"
    assert table.rows[0][3] == "0.837 [0.833, 0.842]"  # medians of updates 17 to 20
    assert [figure.name for figure in section.figures] == ["reward"]


def test_what_has_not_run_or_not_ended_is_named(tmp_path: Path) -> None:
    write_cell(tmp_path, "fp16_pure", 1, category="interrupted")
    run = write_cell(tmp_path, "fp32_baseline", 0)
    (run.path / "run_summary.json").unlink()
    (table,) = stability(read_results(tmp_path)).tables
    assert [row[1:3] for row in table.rows] == [
        ["not ended", "not run"],
        ["not run", "interrupted"],
    ]
