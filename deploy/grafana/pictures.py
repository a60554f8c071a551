"""Draws the dashboards as a person would see them, from a Prometheus that has seen a daemon.

``python -m deploy.grafana.pictures --prometheus http://127.0.0.1:9090 --minutes 10 --agent NAME``
writes one picture for each into ``docs/pictures/dashboards/``. It needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from deploy.grafana.answers import Prometheus, Window
from deploy.grafana.dashboards import FOLDER
from deploy.grafana.drawing import BACK, INK, draw

OUT = Path("docs/pictures/dashboards")
MOST_SAMPLES = 240


def picture(dashboard: Mapping[str, Any], prometheus: Prometheus, window: Window) -> Figure:
    """Draw *dashboard* from its committed JSON.

    Args:
        dashboard: Content of the JSON file.
        prometheus: Server that answers the panels' queries.
        window: Time range to draw.

    Raises:
        OSError: Prometheus does not answer, or refuses a query.
    """
    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(14, 0.36 * height + 0.6), facecolor=BACK, layout="constrained")
    figure.suptitle(dashboard["title"], x=0.01, ha="left", color=INK, fontsize=13)
    grid = figure.add_gridspec(height, 24)
    for panel in panels:
        place = panel["gridPos"]
        vertical = slice(place["y"], place["y"] + place["h"])
        axes = figure.add_subplot(grid[vertical, place["x"] : place["x"] + place["w"]])
        draw(axes, panel, prometheus.answer(panel, window), window)
    return figure


def main() -> None:
    """Draw every dashboard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="its address")
    parser.add_argument("--minutes", type=float, default=10.0, help="how far to look back")
    parser.add_argument("--ago", type=float, default=0.0, help="minutes from its end to now")
    parser.add_argument("--scrape-seconds", type=float, default=15.0, help="its scrape interval")
    parser.add_argument("--agent", required=True, help="whose page to draw")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures")
    given = parser.parse_args()
    end, seconds = time.time() - 60 * given.ago, 60 * given.minutes
    window = Window(
        begin=end - seconds,
        end=end,
        step=max(given.scrape_seconds, seconds / MOST_SAMPLES),
        rate_interval=4 * given.scrape_seconds,  # as Grafana has it
    )
    given.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("*.json")):
        dashboard = json.loads(path.read_text())
        several = any(variable.get("multi") for variable in dashboard["templating"]["list"])
        prometheus = Prometheus(given.prometheus, {"agent": ".*" if several else given.agent})
        figure = picture(dashboard, prometheus, window)
        figure.savefig(given.out / f"{path.stem}.png", dpi=80)


if __name__ == "__main__":
    main()
