"""Rules, dashboards, and the metrics they use."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from genesis_fp16.metrics import Metrics

METRIC = re.compile(r"(?<![\w:])genesis_\w+")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


@pytest.fixture(scope="session")
def rules(root: Path) -> list[dict[str, Any]]:
    """All rules, recording and alerting."""
    files = (root / "deploy/prometheus/rules").glob("*.rules.yml")
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="session")
def alerts(rules: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each alert by its name."""
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


@pytest.fixture(scope="session")
def dashboards(root: Path) -> dict[str, dict[str, Any]]:
    """Each committed dashboard by its uid."""
    files = (root / "deploy/grafana/dashboards").glob("*.json")
    return {path.stem: json.loads(path.read_text()) for path in sorted(files)}


@pytest.fixture(scope="session")
def declared() -> set[str]:
    """Names of the daemon's metrics as a query spells them, without a histogram's suffixes."""
    registry = CollectorRegistry()
    Metrics(registry)
    families = [family for family in registry.collect() if family.name.startswith("genesis_")]
    return {family.name + "_total" * (family.type == "counter") for family in families}


@pytest.fixture(scope="session")
def asked(
    rules: list[dict[str, Any]], dashboards: dict[str, dict[str, Any]]
) -> dict[str, set[str]]:
    """Names of the metrics that rules and dashboards query."""
    queries = {
        "rules": [rule["expr"] for rule in rules],
        "dashboards": [
            target["expr"]
            for dashboard in dashboards.values()
            for panel in dashboard["panels"]
            for target in panel["targets"]
        ],
    }
    return {
        place: {SUFFIX.sub("", name) for expr in exprs for name in METRIC.findall(expr)}
        for place, exprs in queries.items()
    }
