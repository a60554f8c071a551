"""The share of a training that telemetry takes, as ``benchmarks.telemetry`` measures it."""

from __future__ import annotations

from benchmarks.gpu.section import Task
from benchmarks.measuring.table import format_table
from benchmarks.telemetry import measure_share
from infrastructure.training import Precision

_LIMIT_PERCENT = 1.0
_STEPS, _QUICK_STEPS = 3000, 40


def run(task: Task) -> None:
    """Measure two sizes in every precision."""
    rows = [
        measure_share(
            size, precision, task.device, steps=_QUICK_STEPS if task.quick else _STEPS, seed=0
        )
        for size in (("tiny",) if task.quick else ("small", "medium"))
        for precision in Precision
    ]
    task.findings.show(format_table(rows, tuple(rows[0])))
    shares = {f"{row['size']} {row['precision']}": float(row["share"].strip("%")) for row in rows}
    task.findings.decide(
        "telemetry-share",
        holds=max(shares.values()) <= _LIMIT_PERCENT,
        measured=", ".join(f"{name} {share:.2f} %" for name, share in shares.items()),
        **shares,
    )
