"""The plot beside each CSV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.loops import NotRunError


def plot_bars(path: Path, title: str, unit: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a panel of horizontal bars a group.

    Args:
        path: Of the picture; its suffix chooses the format.
        title: Over all panels.
        unit: Of the values.
        groups: Panel to bar to value.

    Raises:
        NotRunError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotRunError(
            "matplotlib is not installed: pip install --constraint constraints.txt "
            "--editable '.[bench]'"
        ) from error
    longest = max(len(bars) for bars in groups.values())
    figure = Figure(figsize=(5 * len(groups), 1.2 + 0.3 * longest), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for panel, (name, bars) in zip(panels, groups.items(), strict=True):
        drawn = panel.barh(list(bars), list(bars.values()))
        panel.bar_label(drawn, fmt="%.3g", padding=2)
        panel.invert_yaxis()
        panel.margins(x=0.15)
        panel.set(title=name, xlabel=unit)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
