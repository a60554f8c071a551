"""The static comparison: what rounding and kernels do to one forward pass."""

from __future__ import annotations

from typing import Any

from infrastructure.events.role_precision import HalfName
from infrastructure.precision_lab.report.drawing import Axis, Line, draw_lines
from infrastructure.precision_lab.report.reading import LabResults, number, texts
from infrastructure.precision_lab.report.sections.section import Figure, Section, Table, shown

DTYPES: tuple[HalfName, ...] = ("bf16", "fp16")
_COLUMNS = {
    "dtype": "half type",
    "temperature": "temperature",
    "seq_length": "length, tokens",
    "tokens": "tokens",
    "nonfinite_tokens": "not finite",
    "simulated_logp_error_mean": "logits rounded, nats",
    "real_logp_error_mean": "forward pass, nats",
    "kernel_contribution": "kernels add, nats",
    "real_kl": "KL to FP32, nats",
}


def static_comparison(results: LabResults) -> Section:
    """Errors of log-probabilities by position and by length."""
    section = Section(
        anchor="static-comparison",
        title="One forward pass: rounding and kernels",
        says=(
            "Mean error of a token's log-probability by position, for the rounding of the logits "
            "alone (dashed) and for the real forward pass. Good is two close lines: a gap that "
            "grows with position comes from inside the model."
        ),
    )
    lines = _lines_by_position(results)
    if any(line.points for line in lines):
        svg = draw_lines(
            lines,
            Axis(label="position in the sequence, tokens"),
            Axis(label="mean |error of log p|, nats", log=True),
            describe="Error of log-probabilities by position, simulated and real",
        )
        section.figures.append(Figure(name="comparison-by-position", svg=svg))
    rows = [[shown(row[name]) for name in _COLUMNS] for row in rows_by_length(results, *_COLUMNS)]
    if rows:
        section.tables.append(Table(head=[*_COLUMNS.values()], rows=rows))
    section.notes.extend(
        f"Not measured: {text}." for text in texts(results.comparison, "not_measured")
    )
    return section.needs("the static comparison", "genesis-fp16 lab compare")


def rows_by_length(results: LabResults, *names: str) -> list[dict[str, Any]]:
    """Rows of its summary that have *names* and, but for the type, numbers in them."""
    needed = {*names, "dtype", "temperature", "seq_length"}
    return [
        {**{name: number(row[name]) for name in row}, "dtype": str(row["dtype"])}
        for row in results.comparison_by_length
        if needed <= row.keys()
    ]


def _lines_by_position(results: LabResults) -> list[Line]:
    """Of the longest sequences, at temperature 1."""
    needed = {"dtype", "temperature", "seq_length", "last_position"}
    needed |= {"real_logp_error_mean", "simulated_logp_error_mean"}
    positions = [
        row
        for row in results.comparison_rows
        if needed <= row.keys() and None not in (row["seq_length"], row["last_position"])
    ]
    longest = max((row["seq_length"] for row in positions), default=0)
    return [
        Line(
            label=f"{dtype}, {text}",
            tone=dtype,
            points=[
                (row["last_position"], row[name])
                for row in positions
                if row["dtype"] == dtype
                and row["seq_length"] == longest
                and row["temperature"] == 1.0
                and row[name] is not None
            ],
            dashed=dashed,
        )
        for dtype in DTYPES
        for name, text, dashed in (
            ("real_logp_error_mean", "forward pass", False),
            ("simulated_logp_error_mean", "logits only", True),
        )
    ]
