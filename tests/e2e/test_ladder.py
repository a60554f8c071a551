"""A real fault of one module: FP32 for all, then for it alone, through kill -9 and the flag."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from infrastructure.events import read_events
from infrastructure.events.event import Started

pytestmark = pytest.mark.e2e

RAISED = ("fp16", "default", 1.0)


@pytest.fixture
def daemon(make_daemon: Callable[..., object], tmp_path: Path, quick_plugin: Path):
    """A daemon, not yet started, whose agent trains without end in FP16 on the CPU."""
    folder = shutil.copytree(quick_plugin, tmp_path / "plugin")
    shutil.copy(Path(__file__).with_name("guilty_agent.py"), folder)
    entry_points = folder / "quick_agent-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[genesis.agents]\nguilty = guilty_agent:GuiltyAgent\n")
    daemon = make_daemon(python_path=folder)
    daemon.configure(
        GENESIS_CPU_HALF="true",
        GENESIS_BASELINE_INTERVAL_STEPS=0,
        GENESIS_BASELINE_EVERY_RUNS=0,
        GENESIS_AGENTS__GUILTY__SCHEDULE='"every 1s"',
        GENESIS_AGENTS__GUILTY__SETTINGS__EPOCHS=1_000_000,
        GENESIS_AGENTS__GUILTY__SETTINGS__BATCHES_PER_EPOCH=500,
        GENESIS_AGENTS__GUILTY__SETTINGS__PAUSE_SECONDS=0.01,
    )
    return daemon


def shown(daemon) -> tuple[str, str, float] | None:
    metrics = daemon.metrics()
    for labels in metrics.labels("genesis_precision_info", agent="guilty"):
        raised = metrics.value("genesis_raised_modules", agent="guilty")
        return labels["effective"], labels["reason"], raised
    return None


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
