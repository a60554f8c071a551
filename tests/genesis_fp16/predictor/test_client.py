"""`genesis_client` with a real predictor, which is killed meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from genesis_client import Agent

from infrastructure.decisions import read_records
from tests.docs.test_ask_a_model import run_page
from tests.genesis_fp16.predictor.conftest import QUESTION, TOOLS, Start, publish, starting
from tests.patience import wait_until

pytestmark = pytest.mark.process
OBSERVATION = QUESTION["observation"]


@pytest.fixture
def start(tmp_path: Path, models: dict[str, Path]) -> Iterator[Start]:
    with starting(tmp_path) as start:
        publish(tmp_path / "agents" / "qa", models["a"], "run-a")
        yield start


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent("qa", home=tmp_path, spool=tmp_path / "spool", deadline=20.0) as agent:
        yield agent


def found(home: Path) -> Counter[tuple[str, str]]:
    """How often each record stands in the predictor's log."""
    log = home / "agents" / "qa" / "decisions"
    return Counter((record["kind"], record["id"]) for _, _, record in read_records(log))


def test_an_agent_asks_acts_and_reports(start: Start, agent: Agent, tmp_path: Path) -> None:
    start()
    ranking = agent.rank(OBSERVATION, TOOLS)
    assert (ranking.version, ranking.from_model, ranking.order[0]) == ("run-a", True, 0)
    assert all(chance is not None and 0 < chance < 1 for chance in ranking.chances)
    with agent.choose(OBSERVATION, TOOLS, group="g") as decision:
        assert (decision.action, decision.propensity) == (TOOLS[0], 1.0)
        decision.report({"ok": "yes"}, reward=1.0, terminated=True)
    assert agent.record(group="g", observation=OBSERVATION, action=TOOLS[1], record_id="t-1")
    assert agent.record(group="g", observation={"load": [{"a": 1}]}, action={}), "of a wrong type"
    assert agent.flush(20.0)
    assert set(found(tmp_path)) == {
        ("decision", decision.id),
        ("outcome", decision.id),
        ("transition", "t-1"),
    }
    assert "transitions.0.observation.load" in agent.status.refusal
    assert (agent.status.sent, agent.status.refused) == (2, 1)


def test_fields_that_are_wrong_are_told_and_not_raised(start: Start, agent: Agent) -> None:
    start()
    ranking = agent.rank({"load": [{"a": 1}]}, TOOLS)
    assert not ranking.from_model
    assert ranking.reason.startswith("status 422: observation.load")


def test_kills_lose_and_double_no_report(start: Start, agent: Agent, tmp_path: Path) -> None:
    predictor, ended = start(), threading.Event()
    ids: list[str] = []
    agent.deadline = 0.2

    def work() -> None:
        while not ended.is_set():
            with agent.choose(OBSERVATION, TOOLS) as decision:
                decision.report({"ok": "yes"}, reward=1.0)
            ids.append(decision.id)
            if not decision.ranking.from_model:
                agent.flush(1.0)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = len(ids)
        wait_until(lambda before=before: len(ids) > before + 30, "reports between two kills")
        predictor.kill()
        predictor.start()
    ended.set()
    for thread in threads:
        thread.join()
    wait_until(lambda: agent.flush(5.0), "reports to be sent")
    records = found(tmp_path)
    assert {name for kind, name in records if kind == "outcome"} == {*ids}
    assert all(count == 1 for count in records.values())
    assert (agent.status.refused, agent.status.dropped) == (0, 0)


def test_the_page_works(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is published."""
    (tmp_path / "agents" / "support").mkdir()
    start()
    (tmp_path / ".genesis").symlink_to(tmp_path)
    agent, (ranking, decision, outcome, steps) = run_page(tmp_path, monkeypatch)
    agent.close()
    assert agent.status.refused == 0
    assert (ranking["version"], decision["chosen"]) == (None, 0)
    assert (outcome["state"], steps["recorded"]) == ("recorded", 1)


def test_a_choice_replaces_a_decision_that_came_too_late(
    start: Start, agent: Agent, tmp_path: Path
) -> None:
    start()
    assert agent.rank(OBSERVATION, TOOLS).from_model
    late = agent.choose(OBSERVATION, TOOLS, deadline=1e-9)
    assert (late.position, late.propensity) == (0, None)
    late.report({"ok": "no"})
    assert agent.flush(20.0)
    records: dict[str, Any] = dict.fromkeys(kind for kind, name in found(tmp_path))
    assert {"choice", "outcome"} <= records.keys()
