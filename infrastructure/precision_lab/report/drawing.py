"""Figures as SVG that follow the colours of the page, in light and dark.

matplotlib draws with placeholder colours, which become CSS variables with a fallback, so that the
same SVG also opens alone. Texts stay texts, are never parsed as formulas, and take the page's font.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal, TypeVar

from infrastructure.events import Role
from infrastructure.events.role_precision import PRESETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

_T = TypeVar("_T")
Tone = Literal["fp32", "bf16", "fp16", "mixed"]

_COLOURS = {  # placeholder of each variable, and its colour where no page defines it
    "ink": ("#010101", "#1f2933"),
    "muted": ("#010102", "#66727f"),
    "grid": ("#010103", "#dfe3e8"),
    "fp32": ("#010104", "#3d4852"),
    "bf16": ("#010105", "#c05621"),
    "fp16": ("#010106", "#2b6cb0"),
    "mixed": ("#010107", "#6b46c1"),
}
_SIZE_INCHES = (5.2, 3.1)
_ROW_INCHES = 0.27
_MOST_POINTS = 300  # of a line
_RC = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.size": 10.0,
    "font.family": "sans-serif",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a plot.

    Attributes:
        label: Name in the legend; lines of one name share an entry.
        tone: Colour.
        points: x and y; not finite ones are gaps.
        band: Lowest and highest y at each x, if it is a summary of several.
        dashed: Whether the line is dashed.
    """

    label: str
    tone: Tone
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    dashed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A row of a dot plot.

    Attributes:
        label: Name of the row.
        tone: Colour.
        values: One for each seed; drawn small, and their median large.
    """

    label: str
    tone: Tone
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis of a plot.

    Attributes:
        label: Quantity and unit.
        log: Whether the scale is logarithmic; values of 0 and below are then left out.
    """

    label: str
    log: bool = False


def tone_of(preset: str) -> Tone:
    """Colour of a preset: by its half type, and a fourth one for two types or an unknown name."""
    precisions = PRESETS.get(preset)
    if (
        precisions is None
        or (policy := precisions[Role.POLICY].compute) != precisions[Role.ROLLOUT].compute
    ):
        return "mixed"
    return policy


def tone_name(tone: Tone) -> str:
    """What the legend calls the lines of a tone."""
    return "both half types" if tone == "mixed" else tone.upper()


def draw_lines(lines: Sequence[Line], x: Axis, y: Axis, *, describe: str) -> str:
    """SVG of *lines*; *describe* is its text for people who do not see it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure

    with rc_context(_RC):
        figure = NewFigure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        named = set[str]()
        for line in lines:
            points = _thinned([p for p in line.points if _drawable(p[0], x) and _drawable(p[1], y)])
            if not points:
                continue
            label = line.label if line.label not in named else "_"
            named.add(line.label)
            colour = _COLOURS[line.tone][0]
            marker = "o" if len(points) < 12 else ""
            style = "--" if line.dashed else "-"
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                label=label,
                marker=marker,
                markersize=3,
                linewidth=1.3,
                linestyle=style,
            )
            if line.band and len(line.band) == len(line.points):
                _fill(axes, line, x, y, colour)
        _finish(axes, x, y)
        if named:
            legend = axes.legend(frameon=False, fontsize=9, labelcolor=_COLOURS["ink"][0])
            legend.set_zorder(5)
        return _svg(figure, describe)


def draw_dots(dots: Sequence[Dot], x: Axis, *, describe: str) -> str:
    """SVG with a row for each of *dots*."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure

    with rc_context(_RC):
        height = max(1.6, 0.9 + _ROW_INCHES * len(dots))
        figure = NewFigure(figsize=(_SIZE_INCHES[0], height), layout="constrained")
        axes = figure.add_subplot()
        for row, dot in enumerate(dots):
            values = sorted(value for value in dot.values if _drawable(value, x))
            if not values:
                axes.text(
                    0.02,
                    row,
                    "0" if any(value == 0 for value in dot.values) else "no value",
                    color=_COLOURS["muted"][0],
                    fontsize=9,
                    va="center",
                    transform=axes.get_yaxis_transform(),
                )
                continue
            colour = _COLOURS[dot.tone][0]
            axes.plot([values[0], values[-1]], [row, row], color=colour, linewidth=1, alpha=0.5)
            axes.plot(values, [row] * len(values), "o", color=colour, markersize=3, alpha=0.55)
            axes.plot([_median(values)], [row], "o", color=colour, markersize=7)
        axes.set_yticks(range(len(dots)), [dot.label for dot in dots])
        axes.set_ylim(len(dots) - 0.4, -0.6)
        _finish(axes, x, None)
        return _svg(figure, describe)


def _fill(axes: Axes, line: Line, x: Axis, y: Axis, colour: str) -> None:
    kept = [
        (point[0], low, high)
        for point, (low, high) in zip(line.points, line.band, strict=True)
        if _drawable(point[0], x) and _drawable(low, y) and _drawable(high, y)
    ]
    if kept:
        xs, lows, highs = zip(*_thinned(kept), strict=True)
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.12, linewidth=0)


def _finish(axes: Axes, x: Axis, y: Axis | None) -> None:
    ink, muted, grid = (_COLOURS[name][0] for name in ("ink", "muted", "grid"))
    _scale(axes.xaxis, axes.set_xscale, x)
    axes.set_xlabel(x.label, color=ink)
    if y is not None:
        _scale(axes.yaxis, axes.set_yscale, y)
        axes.set_ylabel(y.label, color=ink)
    axes.grid(visible=True, color=grid, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=muted, labelcolor=ink, length=2, which="both")
    for name, spine in axes.spines.items():
        spine.set_color(muted)
        spine.set_visible(name in ("left", "bottom"))


def _scale(shown: XAxis | YAxis, set_scale: Callable[[str], None], axis: Axis) -> None:
    """Scale with numbers as people write them; matplotlib would write formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if axis.log:
        set_scale("log")
        low, high = shown.get_data_interval()
        near = 0 < low <= high < 100 * low  # few powers of ten would be left
        shown.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,), numticks=6))
        shown.set_minor_formatter(NullFormatter())
        shown.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e"))
        )
    else:
        shown.set_major_locator(MaxNLocator(6))
        shown.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def _drawable(value: float, axis: Axis) -> bool:
    return math.isfinite(value) and abs(value) < 1e300 and (value > 1e-300 or not axis.log)


def _thinned(points: Sequence[_T]) -> list[_T]:
    every = -(-len(points) // _MOST_POINTS)
    return [*points[::every]] if every > 1 else [*points]


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _svg(figure: Figure, describe: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    for name, (placeholder, colour) in _COLOURS.items():
        svg = svg.replace(placeholder, f"var(--{name}, {colour})")
    head = f'<svg role="img" aria-label="{escape(describe)}" '
    svg = re.sub(r'^<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg)
    svg = re.sub(r'^<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg)
    return head + svg.removeprefix("<svg ")
