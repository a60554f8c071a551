"""Alerts: tested by promtool, explained in the runbook, and on metrics that exist."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.process

Alerts = dict[str, dict[str, Any]]

PAGE = "{{ with $externalLabels.genesis_url }}{{ . }}{{ else }}http://127.0.0.1:9465{{ end }}"


def _run(program: str, *arguments: object) -> None:
    """Run it; skip where it is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} not installed: apt-get install prometheus prometheus-alertmanager")
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _tests(root: Path) -> list[Path]:
    return sorted((root / "deploy/prometheus/tests").glob("*.test.yml"))


def test_promtool_accepts_configuration_and_rules(root: Path) -> None:
    _run("promtool", "check", "config", root / "deploy/prometheus/prometheus.yml")
    _run("promtool", "check", "rules", *(root / "deploy/prometheus/rules").glob("*.yml"))


def test_amtool_accepts_the_configuration(root: Path) -> None:
    _run("amtool", "check-config", root / "deploy/alertmanager/alertmanager.yml")


def test_alerts_fire_with_their_text_or_stay_silent(root: Path) -> None:
    _run("promtool", "test", "rules", *_tests(root))


def test_each_alert_has_a_case_that_fires_and_one_that_does_not(root: Path, alerts: Alerts) -> None:
    cases = [
        case
        for path in _tests(root)
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    firing = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert firing == silent == alerts.keys()


def test_an_alert_names_its_subject_and_its_runbook_entry(alerts: Alerts) -> None:
    for name, alert in alerts.items():
        assert set(alert["labels"]) == {"severity"}, name
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}, name
        summary, runbook = alert["annotations"]["summary"], alert["annotations"]["runbook_url"]
        assert runbook == f"{PAGE}/docs/how-to/runbook.html#{name.lower()}"
        if name != "GenesisNoLeader":  # nobody is left to be named
            assert re.search(r"\$labels\.(agent|instance)", summary), name


def test_the_runbook_has_an_entry_for_each_alert_and_no_other(root: Path, alerts: Alerts) -> None:
    runbook = (root / "docs/how-to/runbook.md").read_text()
    sections = re.split(r"^## ", runbook, flags=re.MULTILINE)[1:]
    entries = {section.split()[0]: section for section in sections if section.startswith("Genesis")}
    assert list(entries) == list(alerts), "in the order of the rules"
    for name, entry in entries.items():
        for part in ("**Means.**", "**Look.**", "**Do.**"):
            assert part in entry, f"{name}: {part}"
        assert f"`{alerts[name]['labels']['severity']}`" in entry, name


def test_rules_and_panels_use_every_metric_and_no_unknown_one(
    declared: set[str], asked: dict[str, set[str]]
) -> None:
    """A metric without a rule or a panel would not be seen."""
    assert asked["rules"] - declared == asked["dashboards"] - declared == set()
    assert declared - asked["rules"] - asked["dashboards"] == set()


def test_recorded_series_are_used(rules: list[dict[str, Any]]) -> None:
    recorded = {rule["record"] for rule in rules if "record" in rule}
    used = {name for rule in rules for name in re.findall(r"\bagent:\w+:\w+", rule["expr"])}
    assert used == recorded
