"""Draws a panel much as Grafana would, from its JSON and the answers to its queries."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter
from matplotlib.ticker import FuncFormatter

from deploy.grafana.answers import Series, Window

BACK, PANE, INK, FAINT = "#111217", "#181b1f", "#ccccdc", "#3a3d45"
PALETTE = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#8ab8ff", "#ffa6b0", "#96d98d")
COLORS = {
    "green": "#56a64b",
    "yellow": "#e0b400",
    "red": "#e02f44",
    "blue": "#3274d9",
    "transparent": PANE,
}
MOST_NAMES = 12


def draw(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series], window: Window) -> None:
    """Draw *panel* into *axes*."""
    axes.set_facecolor(PANE)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(panel["title"], loc="left", color=INK, fontsize=9, fontweight="bold", pad=5)
    if panel["type"] == "stat":
        _number(axes, panel, series)
        return
    axes.set_xlim(_days(window.begin), _days(window.end))
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=7))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=7, length=0)
    if not series:
        axes.set_yticks([])
        nothing = panel["fieldConfig"]["defaults"].get("noValue", "No data")
        axes.text(0.5, 0.5, nothing, transform=axes.transAxes, ha="center", color=INK)
    elif panel["type"] == "state-timeline":
        _timeline(axes, panel, series, window)
    else:
        _lines(axes, panel, series, window)


def _lines(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series], window: Window) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    scale, style = defaults["custom"]["scaleDistribution"], defaults["custom"]["drawStyle"]
    height: defaultdict[float, float] = defaultdict(float)  # of the bars so far
    for index, line in enumerate(series):
        color = PALETTE[index % len(PALETTE)]
        if line.mark:
            days = [_days(time) for time in line.times]
            axes.plot(days, line.values, "o", color=COLORS["red"], markersize=3, label=line.name)
        elif style == "bars":
            days = [_days(time) for time in line.times]
            below = [height[time] for time in line.times]
            axes.bar(days, line.values, _days(window.step), below, color=color, label=line.name)
            for time, value in zip(line.times, line.values, strict=True):
                height[time] += value
        else:
            times, values = _with_gaps(line, window.step)
            axes.plot(times, values, color=color, linewidth=1.3, label=line.name)
    if scale["type"] == "log":
        axes.set_yscale("log", base=scale["log"])
    elif not any(value < 0 for line in series for value in line.values):
        axes.set_ylim(0, None if any(any(line.values) for line in series) else 1)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: said(value, defaults["unit"])))
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is not None:
            axes.axhline(step["value"], color=COLORS["red"], linewidth=0.8, linestyle="--")
    if len(series) <= MOST_NAMES:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.12),
            ncols=3,
            fontsize=7,
            frameon=False,
            labelcolor=INK,
            handlelength=1.2,
        )


def _with_gaps(line: Series, step: float) -> tuple[list[float], list[float]]:
    """The line, broken where a sample is missing."""
    times: list[float] = []
    values: list[float] = []
    before = line.times[0]
    for time, value in zip(line.times, line.values, strict=True):
        if time - before > 1.5 * step:
            times.append(_days(before + step))
            values.append(math.nan)
        times.append(_days(time))
        values.append(value)
        before = time
    return times, values


def _timeline(
    axes: Axes, panel: Mapping[str, Any], series: Sequence[Series], window: Window
) -> None:
    [mapping] = panel["fieldConfig"]["defaults"]["mappings"]
    words = {float(value): result for value, result in mapping["options"].items()}
    rows = sorted({line.name for line in series}, reverse=True)
    seen: dict[str, str] = {}
    for line in series:
        row = rows.index(line.name)
        for value, begin, end in _stretches(line, window.step):
            state = words.get(value, {"text": f"{value:g}", "color": FAINT})
            color = COLORS.get(state["color"], state["color"])
            axes.barh(row, _days(end - begin), 0.7, left=_days(begin), color=color, linewidth=0)
            if color != PANE:
                seen[state["text"]] = color
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    for text, color in seen.items():
        axes.bar(0, 0, color=color, label=text)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=4,
        fontsize=7,
        frameon=False,
        labelcolor=INK,
        handlelength=0.8,
    )


def _stretches(line: Series, step: float) -> Iterator[tuple[float, float, float]]:
    """Each value with the beginning and the end of the time through which it held."""
    begin = before = line.times[0]
    held = line.values[0]
    for time, value in zip(line.times, line.values, strict=True):
        if value != held or time - before > 1.5 * step:
            yield held, begin, before + step
            begin, held = time, value
        before = time
    yield held, begin, before + step


def _number(axes: Axes, panel: Mapping[str, Any], series: Sequence[Series]) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    if not series:
        axes.text(0.5, 0.45, "No data", transform=axes.transAxes, ha="center", color=INK)
        return
    defaults, value = panel["fieldConfig"]["defaults"], series[0].values[-1]
    text = said(value, defaults["unit"])
    if panel["options"]["textMode"] == "name":
        text = series[0].name
    color = INK
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = COLORS.get(step["color"], INK)
    size = 22 if len(text) < MOST_NAMES else 12
    axes.text(
        *(0.5, 0.45, text),
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=color,
        fontsize=size,
        fontweight="bold",
    )


def _days(seconds: float) -> float:
    """Unix time as matplotlib counts it."""
    return seconds / 86400


def _scaled(value: float, steps: Sequence[tuple[float, str]]) -> str:
    for size, suffix in steps:
        if abs(value) >= size:
            return f"{value / size:.3g} {suffix}".rstrip()
    return f"{value / steps[-1][0]:.3g} {steps[-1][1]}".rstrip()


_SECONDS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_PLAIN = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_UNITS: Mapping[str, Callable[[float], str]] = {
    "s": lambda value: _scaled(value, _SECONDS),
    "bytes": lambda value: _scaled(value, _BYTES),
    "percentunit": lambda value: f"{100 * value:.3g} %",
    "ops": lambda value: _scaled(value, _PLAIN) + "/s",
}


def said(value: float, unit: str) -> str:
    """The *value* as Grafana would write it with its *unit*."""
    if value == 0:
        return "0"
    if unit in _UNITS:
        return _UNITS[unit](value)
    return _scaled(value, _PLAIN) if abs(value) >= 1 else f"{value:.3g}"
