"""What came of the storm: alerts that arrived with their text, dashboards whose queries answer."""

import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

DASHBOARDS = Path(__file__).resolve().parents[3] / "deploy/grafana/dashboards"
# What each variable stands for when a query is tried, by the dashboard's uid.
AGENT_OF = {
    "genesis-agent": "storm",
    "genesis-comparison": "quick|storm",
    "genesis-policies": "storm",
}

# Queries whose answer cannot move here, or must not, and why.
STILL = {
    "sum(genesis_plugin_up)": "no plugin is installed or breaks during the test",
    "genesis_plugin_up": "the same",
    "count(genesis_plugin_up) - sum(genesis_plugin_up)": "the same",
    "genesis_build_info": "the version of a process does not change",
    "genesis_leader": "a daemon without the lock stops",
    "genesis_store_up": "the database works",
    "genesis_schedule_period_seconds": "nobody edits a schedule",
    "genesis_slots": "nobody edits the number of slots",
    'process_open_fds{job="genesis-fp16"}': "as many files may be open at every scrape",
    'sum(genesis_run_state{state="running"})': "both slots may be taken at every scrape",
}
# Queries whose answer is 0 or nothing here, and why.
ZERO = {
    "increase(genesis_rounds_failed_total[$__rate_interval]) > 0": "no round fails",
    "increase(genesis_scrapes_failed_total[$__rate_interval]) > 0": "no scrape fails",
    "genesis_unknown_settings > 0": "all names are settings",
    'genesis_cuda_memory_allocated_bytes{agent=~"$agent"} > 0': "there is no GPU",
    'avg by (effective) ((genesis_cuda_memory_allocated_bytes{agent=~"$agent"} > 0) * on (agent, '
    "instance, job) group_left (effective) genesis_precision_info)": "the same",
    'genesis_raised_modules{agent=~"$agent"}': "all would have to be raised",
}
# Queries whose answer may move here, and why it need not.
EITHER = {
    'genesis_gradient_underflow_ratio{agent=~"$agent"} >= 0': "FP16 may end before it is measured",
    'genesis_update_stagnation_ratio{agent=~"$agent"} >= 0': "every weight may move",
    'increase(genesis_rung_searches_total{agent=~"$agent"}[$__rate_interval]) > 0': (
        "a run may end before its search"
    ),
}


def _queries() -> Iterator[tuple[str, str]]:
    """Each query of each panel, with its dashboard's uid."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield path.stem, target["expr"]


def _filled_in(expr: str, uid: str, rate_interval: int) -> str:
    """*expr* as Grafana would send it."""
    filled = expr.replace("$__rate_interval", f"{rate_interval}s")
    filled = filled.replace("$agent", AGENT_OF.get(uid, ""))
    assert "$" not in filled, filled
    return filled


def test_the_alert_arrives_with_its_text(storm: Any) -> None:
    [alert, *_] = storm.receiver.received("GenesisOverflowStorm", "storm")
    summary = alert["annotations"]["summary"]
    share = re.fullmatch(r"storm: ([\d.]+)% of the FP16 steps overflow", summary)
    assert share, summary
    assert 30 < float(share[1]) <= 100
    assert alert["labels"]["severity"] == "critical"
    runbook = "http://127.0.0.1:9465/docs/how-to/runbook.html#genesisoverflowstorm"
    assert alert["annotations"]["runbook_url"] == runbook
    [guard, *_] = storm.receiver.received("GenesisGuardTripped", "storm")
    assert guard["annotations"]["summary"].startswith("storm: ")
    assert "changed the precision" in guard["annotations"]["summary"]


def test_nobody_is_told_of_a_healthy_agent(storm: Any) -> None:
    about_quick = [
        a["labels"] for a in storm.receiver.alerts if a["labels"].get("agent") == "quick"
    ]
    assert {labels["alertname"] for labels in about_quick} <= {"GenesisPrecisionRolledBack"}
    assert storm.receiver.received("GenesisPluginQuarantined", "broken")


def test_every_query_has_an_answer_that_moves(storm: Any) -> None:
    """Pre-created series make "not empty" worth nothing: samples must change and not be zero."""
    still, zero = set(), set()
    for uid, expr in _queries():
        asked = _filled_in(expr, uid, storm.rate_interval)
        asked = asked.removesuffix(" > 0")  # what is shown only where it is not 0 moves from 0
        moments = storm.monitoring.samples(asked, storm.begin, storm.end)
        values = [float(value) for series in moments for value in series.values()]
        if not any(value != 0 and math.isfinite(value) for value in values):
            zero.add(expr)  # or nothing at all
        elif all(series == moments[0] for series in moments):
            still.add(expr)
    of_policies = {expr for uid, expr in _queries() if uid == "genesis-policies"}
    zero -= EITHER.keys()
    of_parts = {expr for _, expr in _queries() if "genesis_part_" in expr}
    predicted = re.compile(r"genesis_(prediction|decisions|outcomes|model)")
    of_predictor = {expr for _, expr in _queries() if predicted.search(expr)}
    nobody = "no agent here has a policy that generates its data, has a job of parts, or asks"
    assert zero == ZERO.keys() | of_policies | of_parts | of_predictor, nobody
    assert still <= STILL.keys() | EITHER.keys()
    assert STILL.keys() | EITHER.keys() <= {expr for _, expr in _queries()}


def test_every_variable_has_values(storm: Any) -> None:
    seen = 0
    for path in DASHBOARDS.glob("*.json"):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                query = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
                assert query, variable["query"]
                values = storm.monitoring.ask(f"label/{query[2]}/values", **{"match[]": query[1]})
                assert set(values) == {"broken", "quick", "storm"}
                seen += 1
    assert seen == len(AGENT_OF)


def test_a_dashboard_can_be_drawn(storm: Any) -> None:
    pytest.importorskip("matplotlib", reason="not installed: the extra 'bench' has it")
    from deploy.grafana.answers import Prometheus, Window
    from deploy.grafana.pictures import picture

    dashboard = json.loads((DASHBOARDS / "genesis-agent.json").read_text())
    prometheus = Prometheus(storm.monitoring.url, {"agent": "storm"})
    window = Window(begin=storm.begin, end=storm.end, step=1.0, rate_interval=storm.rate_interval)
    figure = picture(dashboard, prometheus, window)
    assert [axes.get_title("left") for axes in figure.axes] == [
        panel["title"] for panel in dashboard["panels"]
    ]
    empty = [axes.get_title("left") for axes in figure.axes if axes.texts]
    whole = [title for title in empty if not title.endswith("by part")]  # no job here has parts
    nobody_asks = ["Predictions asked for", "Time of a prediction", "Decisions and outcomes"]
    nobody_asks += ["Log loss of predictions", "Inputs and calibration", "Worth of the model"]
    assert whole == ["GPU memory", *nobody_asks], "there is no GPU, and no agent asks"
    figure.savefig(io.BytesIO(), dpi=30)  # pixels cost seconds
