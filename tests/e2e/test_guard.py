"""A real overflow storm: the guard ends it, says so, and remembers; the neighbour is left alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def plugin(tmp_path: Path, quick_plugin: Path) -> Path:
    """The quick agent and the stormy one, installed beside each other."""
    folder = shutil.copytree(quick_plugin, tmp_path / "plugin")
    shutil.copy(Path(__file__).with_name("stormy_agent.py"), folder)
    with (folder / "quick_agent-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write("stormy = stormy_agent:StormyAgent\n")
    return folder


@pytest.fixture
def daemon(make_daemon: Callable[..., object], plugin: Path):
    """A daemon whose two agents train without end, in FP16 on the CPU.

    The scale backs off by little, so that it is nowhere near its floor when the storm is seen.
    """
    daemon = make_daemon(python_path=plugin)
    daemon.configure(
        GENESIS_SLOTS=2,
        GENESIS_CPU_HALF="true",
        FP16_BACKOFF_FACTOR=0.99,
        GENESIS_BASELINE_INTERVAL_STEPS=0,
    )
    for agent in ("QUICK", "STORMY"):
        daemon.configure(
            **{
                f"GENESIS_AGENTS__{agent}__SCHEDULE": '"every 1s"',
                f"GENESIS_AGENTS__{agent}__SETTINGS__EPOCHS": 1_000_000,
                f"GENESIS_AGENTS__{agent}__SETTINGS__BATCHES_PER_EPOCH": 500,
            }
        )
    return daemon.start()


def in_force(daemon, agent: str) -> list[tuple[str, str]]:
    labels = daemon.metrics().labels("genesis_precision_info", agent=agent)
    return [(each["effective"], each["reason"]) for each in labels]


def state(daemon, agent: str) -> list[str]:
    return [each["state"] for each in daemon.metrics().labels("genesis_guard_state", agent=agent)]


def explained(daemon) -> str:
    done = daemon.cli("precision", "explain", "stormy")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_storm_is_ended_told_and_remembered(daemon) -> None:
    assert state(daemon, "stormy") == ["watching"]
    daemon.wait_for(lambda: state(daemon, "stormy") == ["tripped"], 120, "to see the storm")
    daemon.wait_for(lambda: in_force(daemon, "stormy") == [("fp32", "guard")], 20, "to be in FP32")
    steps = "genesis_training_steps_total"
    applied = daemon.metrics().value(steps, agent="stormy", outcome="applied")
    daemon.wait_for(
        lambda: daemon.metrics().value(steps, agent="stormy", outcome="applied") > applied + 500,
        60,
        "to train on in FP32",
    )
    metrics = daemon.metrics()
    trips = metrics.labels("genesis_guard_trips_total")
    assert [(each["agent"], each["trigger"]) for each in trips] == [("stormy", "overflow_storm")]
    assert metrics.value("genesis_precision_rollbacks_total", agent="stormy", reason="guard") == 1
    assert metrics.value("genesis_fp16_overflow_steps_total", agent="stormy") > 100
    assert len(daemon.events("started")) == 2, "one attempt each: nothing was restarted"

    told = explained(daemon)
    for said in (
        "stormy was last in FP32",
        "reason guard",
        "overflow_storm at",
        "the limit is 30%",
    ):
        assert said in told
    assert "precision clear --guard stormy" in told

    assert daemon.stop()[0] == 0
    down = explained(daemon)
    assert "overflow_storm at" in down
    [bundle] = daemon.home.glob("guard/stormy/*.json")
    assert str(bundle) in down
    seen = json.loads(bundle.read_text())
    assert seen["attempt"] == 1
    assert seen["numbers"]["overflows"] / seen["numbers"]["steps"] > 0.3
    assert seen["statistics"][-1]["precision"] == "fp16"

    daemon.start()
    assert state(daemon, "stormy") == ["tripped"]
    daemon.wait_for(
        lambda: in_force(daemon, "stormy") == [("fp32", "guard")], 60, "to resume in FP32"
    )
    daemon.wait_for(lambda: in_force(daemon, "quick"), 60, "to resume the neighbour")
    assert in_force(daemon, "quick") == [("fp16", "default")]
    assert state(daemon, "quick") == ["watching"]

    done = daemon.cli("precision", "clear", "--guard", "stormy", "--reason", "let us see")
    assert done.returncode == 0, done.stderr
    daemon.wait_for(
        lambda: daemon.metrics().value("genesis_guard_trips_total", agent="stormy") == 1,
        60,
        "to relapse",
    )
    assert state(daemon, "stormy") == ["tripped"]
    history = daemon.json("precision", "explain", "stormy")["decisions"]
    assert [(each["state"], each["level"]) for each in history] == [
        ("tripped", 2),
        ("probation", 1),
        ("tripped", 1),
    ]
    assert state(daemon, "quick") == ["watching"]
