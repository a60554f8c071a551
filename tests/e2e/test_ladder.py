"""A real fault of one module: FP32 for all, then for it alone, through kill -9 and the flag."""

import json
import os
import signal
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from infrastructure.events import read_events
from infrastructure.events.event import Started
from tests.e2e.ladder import RAISED, configure, guilty_plugin, play, shown

pytestmark = pytest.mark.e2e


@pytest.fixture
def daemon(make_daemon: Callable[..., object], tmp_path: Path):
    """A daemon, not yet started, whose agent trains without end in FP16 on the CPU."""
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    daemon = make_daemon(python_path=guilty_plugin(plugin))
    configure(daemon)
    return daemon


def attempts(daemon) -> list[Path]:
    return sorted(daemon.home.glob("runs/*/attempts/*"))


def last_state(daemon):
    return daemon.events("precision_changed")[-1].state


def test_only_the_guilty_module_stays_in_fp32(daemon) -> None:
    daemon.start()
    daemon.wait_for(lambda: shown(daemon) == RAISED, "to descend to the guilty module")
    states = [event.state for event in daemon.events("precision_changed")]
    in_order = [effective for effective, _ in groupby(state.effective for state in states)]
    assert in_order == ["fp16", "fp32", "fp16"], "the whole job was in FP32 first"
    assert states[-1].modules == ("guilty",)
    assert len(attempts(daemon)) == 1, "nothing was restarted"
    [found] = daemon.events("rung_searched")
    assert (found.cause, found.modules) == ("modules", ("guilty",))
    assert found.fp32_share < 0.2
    applied = {"agent": "guilty", "outcome": "applied"}
    before = daemon.metrics().value("genesis_training_steps_total", **applied)
    daemon.wait_for(
        lambda: daemon.metrics().value("genesis_training_steps_total", **applied) > before + 50,
        "to train on",
    )

    told = daemon.cli("precision", "explain", "guilty").stdout
    for said in ("Raised        guilty", "keep_fp32=['guilty'] suffices", "KEEP_FP32=guilty"):
        assert said in told
    [decision, trip] = daemon.json("precision", "explain", "guilty")["decisions"]
    assert (decision["state"], decision["modules"], trip["modules"]) == ("tripped", ["guilty"], [])
    assert daemon.metrics().value("genesis_rung_searches_total", agent="guilty", cause="modules")
    bundle = json.loads((daemon.home / decision["evidence"]).read_text())
    assert bundle["search"]["modules"] == ["guilty"]

    [attempt] = attempts(daemon)
    [started] = [e for e in read_events(attempt / "events.ndjson") if isinstance(e, Started)]
    os.kill(started.pid, signal.SIGKILL)
    daemon.wait_for(lambda: len(attempts(daemon)) == 2, "to start another attempt")
    changes = len(states) + 1
    daemon.wait_for(lambda: len(daemon.events("precision_changed")) == changes, "to resume")
    assert last_state(daemon).modules == ("guilty",)
    daemon.configure(ENABLE_FP16_TRAINING="false")
    daemon.wait_for(lambda: shown(daemon) == ("fp32", "flag", 0.0), "to obey the flag")
    daemon.configure(ENABLE_FP16_TRAINING="true")
    daemon.wait_for(lambda: shown(daemon) == RAISED, "to return to its rung")

    assert daemon.stop()[0] == 0
    daemon.start()
    daemon.wait_for(lambda: shown(daemon) == RAISED, "to remember its rung")
    done = daemon.cli("precision", "set", "fp32", "--reason", "let us see")
    assert done.returncode == 0, done.stderr
    daemon.wait_for(lambda: shown(daemon) == ("fp32", "operator", 0.0), "to obey the operator")


def test_kills_and_commands_leave_one_state(daemon) -> None:
    daemon.configure(GENESIS_GUARD_REENABLE="auto", GENESIS_GUARD_COOLDOWN_SECONDS=60)
    play(daemon.start(), rounds=2, seed=2)
