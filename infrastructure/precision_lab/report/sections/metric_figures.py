"""Figures of one metric of the trainings of a sweep, by update or by preset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from infrastructure.precision_lab.report.drawing import (
    Axis,
    Dot,
    Line,
    draw_dots,
    draw_lines,
    tone_name,
    tone_of,
)
from infrastructure.precision_lab.report.reading import BASELINE, LabResults
from infrastructure.precision_lab.report.sections.section import SWEEP, Figure, Section


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricFigure:
    """A metric to draw over the updates.

    Attributes:
        metric: Name of the metric in the results.
        label: What it is, with its unit.
        name: Name of the figure.
        log: Whether the scale is logarithmic.
    """

    metric: str
    label: str
    name: str
    log: bool = False

    @property
    def axis(self) -> Axis:
        """Axis of the metric."""
        return Axis(label=self.label, log=self.log)

    def by_update(self, results: LabResults) -> Iterator[Figure]:
        """A line for each preset: the median of its seeds, with their range for the baseline."""
        lines = sorted(
            (_line(results, preset, self.metric) for preset in results.presets),
            key=lambda line: line.tone == "fp32",  # in front
        )
        if any(line.points for line in lines):
            describe = f"{self.label} by update"
            svg = draw_lines(lines, Axis(label="update"), self.axis, describe=describe)
            yield Figure(name=self.name, svg=svg)

    def by_preset(self, results: LabResults) -> Iterator[Figure]:
        """A row for each preset: the median over the updates of each seed."""
        medians: dict[str, list[float]] = {preset: [] for preset in results.presets}
        for cell in results.cells:
            if values := cell.values(self.metric):
                medians[cell.preset].append(median(values))
        if any(medians.values()):
            yield dot_figure(medians, self.axis, self.name)


def _line(results: LabResults, preset: str, metric: str) -> Line:
    by_step: dict[float, list[float]] = {}
    for cell in results.cells:
        if cell.preset == preset:
            for step, value in cell.series(metric):
                if math.isfinite(value):
                    by_step.setdefault(step, []).append(value)
    ordered = sorted(by_step.items())
    tone = tone_of(preset)
    return Line(
        label=tone_name(tone),
        tone=tone,
        points=[(step, median(values)) for step, values in ordered],
        band=[(min(values), max(values)) for _, values in ordered] if preset == BASELINE else (),
    )


def dot_figure(values: dict[str, list[float]], axis: Axis, name: str) -> Figure:
    """A row for each preset of *values* with its values."""
    dots = [
        Dot(label=preset[:40], tone=tone_of(preset), values=values[preset]) for preset in values
    ]
    return Figure(name=name, svg=draw_dots(dots, axis, describe=f"{axis.label}, by preset"))


def no_cells(results: LabResults) -> str:
    """Why nothing of a sweep can be shown; empty if there are cells."""
    return "" if results.cells else f"No cell of a sweep is in this folder: {SWEEP} makes them."


def metric_section(
    results: LabResults,
    section: Section,
    *,
    by_update: Sequence[MetricFigure] = (),
    by_preset: Sequence[MetricFigure] = (),
) -> Section:
    """*section* with these figures, or why no cell has any of their metrics."""
    for figure in by_update:
        section.figures.extend(figure.by_update(results))
    for figure in by_preset:
        section.figures.extend(figure.by_preset(results))
    if not section.figures:
        metrics = " or ".join(figure.metric for figure in (*by_update, *by_preset))
        section.absent = no_cells(results) or f"No cell has a finite value of {metrics}."
    return section
