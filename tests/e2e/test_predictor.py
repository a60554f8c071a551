"""A real daemon's predictor: asked, killed, asked again; what it was told is trained on."""

import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from infrastructure.trajectories import ReplayBuffer

pytestmark = pytest.mark.e2e

QUESTION = {"observation": {"angle": 1.0}, "actions": [{"turn": "left"}, {"turn": "right"}]}


class Unix(http.client.HTTPConnection):
    """A connection to the predictor's socket in a home."""

    def __init__(self, home: Path) -> None:
        super().__init__("localhost", timeout=120)
        self._path = home / "predict.sock"

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(str(self._path))


def ask(home: Path, verb: str, body: object) -> tuple[int, Any]:
    """Ask about the quick agent."""
    with closing(Unix(home)) as connection:
        connection.request("POST", f"/api/agents/quick/{verb}", json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def predictors(log: str) -> list[int]:
    """Processes that the daemon has started to answer."""
    started = [line for line in log.splitlines() if "predictor_started" in line]
    return [int(found[1]) for line in started if (found := re.search(r"pid\W+(\d+)", line))]


def test_a_daemon_answers_its_agents_and_learns_from_what_they_report(
    make_daemon: Callable[..., Any],
) -> None:
    daemon = make_daemon()
    daemon.configure(
        GENESIS_AGENTS__QUICK__EXPLORE='"epsilon 1"',
        GENESIS_AGENTS__QUICK__SCHEDULE='"every 2 outcomes, at most every 1s"',
    )
    daemon.start()
    assert predictors(daemon.log) == [], "it starts when somebody asks"
    daemon.wait_for(lambda: ask(daemon.home, "rank", QUESTION)[0] == 200, "to know the agent")
    for name in ("first", "second"):
        status, decision = ask(daemon.home, "decisions", {**QUESTION, "id": name})
        assert (status, decision["propensities"]) == (200, [0.5, 0.5])
        os.kill(predictors(daemon.log)[-1], signal.SIGKILL)
        report = {"reward": 0.5, "next_observation": {}}
        assert ask(daemon.home, f"decisions/{name}/outcome", report)[1]["state"] == "recorded"
        assert ask(daemon.home, f"decisions/{name}/outcome", report)[1]["state"] == "repeated"
    assert len(set(predictors(daemon.log))) == 3

    def outcomes() -> float:
        return daemon.metrics().value("genesis_outcomes_total", agent="quick", state="repeated")

    daemon.wait_for(lambda: outcomes() >= 1, "to count outcomes")

    def runs() -> float:
        return daemon.metrics().value("genesis_runs_total", agent="quick", result="succeeded")

    daemon.wait_for(lambda: runs() == 1, "to train once two outcomes are there")
    recorded = ReplayBuffer(daemon.home / "agents" / "quick" / "replay").read()
    decided = [row for row in recorded if "decision" in row.info]
    assert sorted(row.info["decision"] for row in decided) == ["first", "second"]
    assert {(row.reward, row.propensity) for row in decided} == {(0.5, 0.5)}
    code, _ = daemon.stop()
    assert code == 0
    assert not (daemon.home / "predict.sock").exists()
