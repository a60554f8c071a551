"""Figures of a metric: medians, gaps, and metrics that are missing."""

from __future__ import annotations

import math
from pathlib import Path

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.metric_figures import MetricFigure, metric_section
from infrastructure.precision_lab.report.sections.section import Section
from tests.infrastructure.precision_lab.report.results_folder import write_cell, write_json


def test_a_metric_that_no_cell_has_is_named(tmp_path: Path) -> None:
    write_cell(tmp_path, "fp16_pure", 0, updates=0).append({"step": 1, "loss": 1.0})
    assert _absent(tmp_path) == "No cell has a finite value of grad_norm or kl."


def test_without_a_sweep_the_command_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "bisect.json", {"culprits": []})
    assert "genesis-fp16 lab sweep" in _absent(tmp_path)


def _absent(folder: Path) -> str:
    figures = [MetricFigure(metric=each, label=each, name=each) for each in ("grad_norm", "kl")]
    section = Section(anchor="x", title="x", says="x")
    return metric_section(
        read_results(folder), section, by_update=figures[:1], by_preset=figures[1:]
    ).absent


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    run = write_cell(tmp_path, "fp32_baseline", 0, updates=0)
    for step, value in enumerate((1.0, math.nan, 3.0)):
        run.append({"step": step, "kl": value})
    results = read_results(tmp_path)
    figure = MetricFigure(metric="kl", label="KL", name="kl")
    (by_update,), (by_preset,) = figure.by_update(results), figure.by_preset(results)
    assert "FP32" in by_update.svg
    assert "fp32_baseline" in by_preset.svg
