"""The dashboards as code: ``python -m deploy.grafana.dashboards`` writes their JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana import agent, comparison, daemon, overview, policies
from deploy.grafana.panels import SOURCE, Lines, Number, Timeline

FOLDER = Path(__file__).with_name("dashboards")
TAG = "genesis-fp16"
AGENTS = "label_values(genesis_plugin_up, agent)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A dashboard.

    Attributes:
        uid: Identity in its address and in the name of its file.
        title: Title of the dashboard.
        panels: Panels in reading order.
        of_agents: Whether it has a variable ``agent``: ``one``, ``several`` or ``none``.
    """

    uid: str
    title: str
    panels: Sequence[Lines | Number | Timeline]
    of_agents: str


PAGES = (
    Page(
        uid="genesis-overview", title="Genesis: overview", panels=overview.PANELS, of_agents="none"
    ),
    Page(uid="genesis-agent", title="Genesis: one agent", panels=agent.PANELS, of_agents="one"),
    Page(
        uid="genesis-comparison",
        title="Genesis: FP16 and FP32",
        panels=comparison.PANELS,
        of_agents="several",
    ),
    Page(
        uid="genesis-policies",
        title="Genesis: policies",
        panels=policies.PANELS,
        of_agents="one",
    ),
    Page(uid="genesis-daemon", title="Genesis: the daemon", panels=daemon.PANELS, of_agents="none"),
)


def render(page: Page) -> str:
    """The dashboard as the JSON that Grafana loads."""
    board = (
        Dashboard(page.title)
        .uid(page.uid)
        .tags([TAG])
        .time("now-6h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            DashboardLink("Genesis")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .keep_time(True)
        )
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    if page.of_agents != "none":
        board.with_variable(_agent_variable(several=page.of_agents == "several"))
    for number, panel in enumerate(page.panels, start=1):
        board.with_panel(panel.build(number))
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _agent_variable(*, several: bool) -> QueryVariable:
    variable = QueryVariable("agent").label("Agent").datasource(SOURCE).query(AGENTS)
    variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return variable.multi(several).include_all(several)


def main() -> None:
    """Write every dashboard to its file."""
    FOLDER.mkdir(exist_ok=True)
    for page in PAGES:
        (FOLDER / f"{page.uid}.json").write_text(render(page))


if __name__ == "__main__":
    main()
