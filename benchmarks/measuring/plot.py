"""Plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.measuring.not_run import NotRunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_bars(path: Path, title: str, unit: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a panel of horizontal bars per group.

    Args:
        path: File of the picture; its suffix selects the format.
        title: Title above all panels.
        unit: Unit of the values.
        groups: Values by panel and bar.

    Raises:
        NotRunError: matplotlib is not installed.
    """
    longest = max(len(bars) for bars in groups.values())
    figure = _figure(5 * len(groups), 1.2 + 0.3 * longest)
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for panel, (name, bars) in zip(panels, groups.items(), strict=True):
        drawn = panel.barh(list(bars), list(bars.values()))
        panel.bar_label(drawn, fmt="%.3g", padding=2)
        panel.invert_yaxis()
        panel.margins(x=0.15)
        panel.set(title=name, xlabel=unit)
    _save(figure, path, title)


def plot_shares(
    path: Path,
    title: str,
    unit: str,
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    most: Mapping[str, float],
) -> None:
    """Draw cumulative distributions against a logarithmic axis.

    Args:
        path: File of the picture; its suffix selects the format.
        title: Title above all panels.
        unit: Unit of the values.
        panels: Values, each at least 1, by panel and curve.
        most: Upper end of the x axis, by panel.

    Raises:
        NotRunError: matplotlib is not installed.
    """
    figure = _figure(5.5 * len(panels), 5.5)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (name, curves) in zip(axes, panels.items(), strict=True):
        for label, values in curves.items():
            panel.ecdf(list(values), label=label)
        panel.set(title=name, xlabel=unit, ylabel="share repaired", xscale="log", ylim=(0, 1))
        panel.set_xlim(1, most[name])
        panel.grid(alpha=0.3)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)  # below the curves
    _save(figure, path, title)


class Band(NamedTuple):
    """A line of a plot, with an interval at each point.

    Attributes:
        x: Position of each point.
        middle, low, high: Value of each point, and the bounds of its interval.
    """

    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def plot_bands(
    path: Path, title: str, labels: tuple[str, str], panels: Mapping[str, Mapping[str, Band]]
) -> None:
    """Draw curves with their intervals, for values from 0 to 1.

    Args:
        path: File of the picture; its suffix selects the format.
        title: Title above all panels.
        labels: Of the x axis and of the y axis.
        panels: Bands by panel and curve.

    Raises:
        NotRunError: matplotlib is not installed.
    """
    figure = _figure(5 * len(panels), 4)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (name, bands) in zip(axes, panels.items(), strict=True):
        for label, band in bands.items():
            (line,) = panel.plot(band.x, band.middle, label=label)
            panel.fill_between(band.x, band.low, band.high, color=line.get_color(), alpha=0.15)
        panel.set(title=name, xlabel=labels[0], ylabel=labels[1], ylim=(0, 1))
        panel.grid(alpha=0.3)
        panel.legend(loc="lower right")
    _save(figure, path, title)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotRunError(
            "matplotlib is not installed; run: pip install --constraint constraints.txt "
            "--editable '.[bench]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path, title: str) -> None:
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
