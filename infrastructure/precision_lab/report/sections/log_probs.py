"""Errors of log-probabilities: accumulated over a sequence, and between rollout and trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from infrastructure.precision_lab.report.drawing import Axis, Line, draw_lines, tone_name, tone_of
from infrastructure.precision_lab.report.reading import LabResults, Row, inner, number
from infrastructure.precision_lab.report.sections.metric_figures import MetricFigure
from infrastructure.precision_lab.report.sections.section import SWEEP, Figure, Section
from infrastructure.precision_lab.report.sections.static_comparison import DTYPES, rows_by_length


def accumulated_error(results: LabResults) -> Section:
    """Error of a whole sequence, of the static comparison and of the trainings."""
    section = Section(
        anchor="accumulated",
        title="Accumulated error of log-probabilities",
        says=(
            "Error of a whole sequence's log-probability against FP32, by its length. Good stays "
            "far below 0.1 nats: a ratio of sequences is off by the exponential of it."
        ),
    )
    lines = [
        Line(
            label=dtype,
            tone=dtype,
            points=sorted(
                (row["seq_length"], row["sequence_error_mean"])
                for row in rows_by_length(results, "sequence_error_mean")
                if row["dtype"] == dtype
                and row["temperature"] == 1.0
                and None not in (row["seq_length"], row["sequence_error_mean"])
            ),
        )
        for dtype in DTYPES
    ]
    if any(line.points for line in lines):
        section.figures.append(
            Figure(
                name="accumulated-by-length",
                svg=draw_lines(
                    lines,
                    Axis(label="length, tokens"),
                    Axis(label="error of a sequence, nats", log=True),
                    describe="Error of a sequence's log-probability by length, for BF16 and FP16",
                ),
            )
        )
        section.notes.append(
            "By length: of the static comparison, at temperature 1; nothing was trained."
        )
    in_training = MetricFigure(
        metric="accum_err_final",
        label="error of a completion's log-probability, nats",
        name="accumulated-in-training",
        log=True,
    )
    section.figures.extend(in_training.by_preset(results))
    return section.needs(in_training.metric, f"genesis-fp16 lab compare, or {SWEEP}")


def mismatch(results: LabResults) -> Section:
    """Difference of the log-probabilities of rollout and trainer."""
    section = Section(
        anchor="mismatch",
        title="Mismatch of rollout and trainer",
        says=(
            "How far the trainer's log-probabilities are from those the tokens were drawn with. "
            "Good is near FP32; k3 above 0.01 biases the gradient, and one type for both helps "
            "most."
        ),
    )
    in_training = MetricFigure(
        metric="mismatch_k3",
        label="k3 of rollout and trainer, nats per token",
        name="mismatch",
        log=True,
    )
    section.figures.extend(in_training.by_preset(results))
    section.figures.extend(_replayed_mismatch(results))
    return section.needs(in_training.metric, f"genesis-fp16 lab replay, or {SWEEP}")


def _replayed_mismatch(results: LabResults) -> Iterator[Figure]:
    """Share of the tokens of a replay whose mismatch exceeds a bound, for each preset."""
    lines = []
    for preset, result in results.replays.items():
        mismatches = sorted(abs(value) for value in _token_values(result, "mismatch"))
        points = [
            (value, (len(mismatches) - below) / len(mismatches))
            for below, value in enumerate(mismatches)
        ]
        lines.append(Line(label=tone_name(tone_of(preset)), tone=tone_of(preset), points=points))
    if any(line.points for line in lines):
        yield Figure(
            name="mismatch-distribution",
            svg=draw_lines(
                sorted(lines, key=lambda line: line.tone == "fp32"),
                Axis(label="|log p of trainer - log p of rollout|, nats", log=True),
                Axis(label="share of tokens above it", log=True),
                describe="Distribution of the mismatch of a replay's tokens, a line each preset",
            ),
        )


def _token_values(result: Row, name: str) -> list[float]:
    """Finite values of the tokens of a replay; empty where they are not a list."""
    values = inner(result, "tokens", name)
    numbers = [number(value) for value in values] if isinstance(values, list) else []
    return [value for value in numbers if value is not None and math.isfinite(value)]
