"""Held-out loss of trainings in half precision, divided by that of the same ones in FP32."""

from __future__ import annotations

from benchmarks.gpu.section import Task
from benchmarks.step.accuracy import compare_accuracy
from benchmarks.step.loops import HALF_DTYPES
from benchmarks.step.models import SIZES
from benchmarks.step.report import format_figures

_EFFORT = {"small": (400, 5), "medium": (300, 3), "large": (100, 2)}  # steps, seeds
_QUICK_EFFORT = {"tiny": (20, 1)}


def run(task: Task) -> None:
    """Compare both half types at every size."""
    figures = [
        compare_accuracy(SIZES[name], precision, task.device, steps=steps, seeds=seeds)
        for name, (steps, seeds) in (_QUICK_EFFORT if task.quick else _EFFORT).items()
        for precision in HALF_DTYPES
    ]
    task.findings.show(format_figures(figures))
    medians = {figure.what: figure.spread.median for figure in figures if figure.spread}
    if len(medians) < len(figures):
        reasons = dict.fromkeys(figure.reason for figure in figures if not figure.spread)
        task.findings.cannot("accuracy", "; ".join(reasons))
        return
    worst = max(medians, key=lambda what: medians[what])
    task.findings.decide(
        "accuracy",
        holds=all(figure.verdict == "pass" for figure in figures),
        measured=f"worst of {len(medians)}: {worst}: {medians[worst]:.5f}",
        **medians,
    )
