"""Dashboards: the committed JSON is what the code generates, and is valid for Grafana."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana.dashboards import FOLDER, PAGES, render
from docs.generated_pages import declared_metrics

Dashboards = dict[str, dict[str, Any]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
def test_the_committed_file_is_what_the_code_makes(page: Any) -> None:
    written = (FOLDER / f"{page.uid}.json").read_text()
    assert written == render(page), "run: python -m deploy.grafana.dashboards"


def test_nothing_else_is_committed() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {page.uid for page in PAGES}


def test_panels_are_labelled_and_numbered(dashboards: Dashboards) -> None:
    for uid, dashboard in dashboards.items():
        panels = dashboard["panels"]
        assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
        titles = [panel["title"] for panel in panels]
        assert len(set(titles)) == len(titles), uid
        for panel in panels:
            where = f"{uid}: {panel['title']}"
            assert panel["description"], where
            assert panel["fieldConfig"]["defaults"]["unit"], where
            for target in panel["targets"]:
                assert target["refId"], where
                assert target["legendFormat"], where
                assert target["datasource"]["uid"] == "${datasource}", where


def test_queries_filter_by_labels_that_the_metric_has(dashboards: Dashboards) -> None:
    """A filter by another label finds nothing, and the panel stays empty."""
    labels = {name: named for name, (_, named, _) in declared_metrics().items()}
    for uid, dashboard in dashboards.items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                for name, selector in re.findall(r"(genesis_\w+)\{([^}]*)\}", target["expr"]):
                    asked = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selector))
                    family = re.sub(r"_(?:bucket|sum|count)$", "", name)
                    assert asked <= labels[family] | {"le"}, f"{uid}: {target['expr']}"


def test_panels_fill_the_rows_and_do_not_overlap(dashboards: Dashboards) -> None:
    for uid, dashboard in dashboards.items():
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            columns = range(place["x"], place["x"] + place["w"])
            cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
            assert not cells & taken, f"{uid}: {panel['title']}"
            taken |= cells
        assert {x for x, _ in taken} == set(range(24)), uid


def test_queries_keep_to_the_time_shown_and_invent_no_zeros(dashboards: Dashboards) -> None:
    for uid, dashboard in dashboards.items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expr = target["expr"]
                ranges = re.findall(r"\[([^\]]+)\]", expr)
                assert set(ranges) <= {"$__rate_interval"}, f"{uid}: {expr}"
                assert "vector(" not in expr, f"{uid}: {expr}"
                names = {variable["name"] for variable in dashboard["templating"]["list"]}
                used = set(re.findall(r"\$(\w+)", expr)) - {"__rate_interval"}
                assert used <= names, f"{uid}: {expr}"


def test_provisioning_names_one_prometheus_and_one_folder(root: Path) -> None:
    provisioning = root / "deploy/grafana/provisioning"
    [source] = yaml.safe_load((provisioning / "datasources/genesis.yml").read_text())["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    scraped = yaml.safe_load((root / "deploy/prometheus/prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"]
    [provider] = yaml.safe_load((provisioning / "dashboards/genesis.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"].startswith("/var/lib/grafana/dashboards")
