"""Sections of the trainings' signals."""

from __future__ import annotations

from pathlib import Path

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.training import gradients, values
from tests.infrastructure.precision_lab.report.results_folder import write_cell, write_sweep


def test_spikes_and_skipped_updates_are_counted(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    (table,) = gradients(read_results(tmp_path)).tables
    assert table.rows[0] == ["fp32_baseline", "40", "2", "2", "150"]


def test_values_show_steps_and_stagnation(tmp_path: Path) -> None:
    write_cell(tmp_path, "fp16_pure", 0)
    names = [figure.name for figure in values(read_results(tmp_path)).figures]
    assert names == ["value-step", "value-stagnation"]
