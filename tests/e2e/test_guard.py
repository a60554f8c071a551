"""Real overflows: the guard or the worker itself ends them, and no other agent is touched."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


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
    """A daemon, not yet started, whose two agents train without end in FP16 on the CPU."""
    daemon = make_daemon(python_path=plugin)
    daemon.configure(
        GENESIS_SLOTS=2,
        GENESIS_CPU_HALF="true",
        GENESIS_BASELINE_INTERVAL_STEPS=0,
        GENESIS_BASELINE_EVERY_RUNS=0,
    )
    for agent, pause in (("QUICK", 0.02), ("STORMY", 0.002)):
        daemon.configure(
            **{
                f"GENESIS_AGENTS__{agent}__SCHEDULE": '"every 1s"',
                f"GENESIS_AGENTS__{agent}__SETTINGS__EPOCHS": 1_000_000,
                f"GENESIS_AGENTS__{agent}__SETTINGS__BATCHES_PER_EPOCH": 500,
                f"GENESIS_AGENTS__{agent}__SETTINGS__PAUSE_SECONDS": pause,
            }
        )
    return daemon


def in_force(daemon, agent: str) -> list[tuple[str, str]]:
    labels = daemon.metrics().labels("genesis_precision_info", agent=agent)
    return [(shown["effective"], shown["reason"]) for shown in labels]


def state(daemon, agent: str) -> list[str]:
    return [shown["state"] for shown in daemon.metrics().labels("genesis_guard_state", agent=agent)]


def explained(daemon) -> str:
    done = daemon.cli("precision", "explain", "stormy")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_storm_is_ended_told_and_remembered(daemon) -> None:
    """The scale backs off by little, so that it is far above its floor when the storm is seen."""
    daemon.configure(FP16_BACKOFF_FACTOR=0.99)
    daemon.start()
    daemon.wait_for(lambda: state(daemon, "stormy") == ["tripped"], "to see the storm")
    daemon.wait_for(lambda: in_force(daemon, "stormy") == [("fp32", "guard")], "to be in FP32")
    steps = "genesis_training_steps_total"
    applied = daemon.metrics().value(steps, agent="stormy", outcome="applied")
    daemon.wait_for(
        lambda: daemon.metrics().value(steps, agent="stormy", outcome="applied") > applied + 500,
        "to train on in FP32",
    )
    metrics = daemon.metrics()
    trips = metrics.labels("genesis_guard_trips_total")
    assert [(trip["agent"], trip["trigger"]) for trip in trips] == [("stormy", "overflow_storm")]
    assert metrics.value("genesis_precision_rollbacks_total", agent="stormy", reason="guard") == 1
    assert metrics.value("genesis_fp16_overflow_steps_total", agent="stormy") > 30
    assert len(daemon.events("started")) == 2, "one attempt each: nothing was restarted"

    told = explained(daemon)
    for said in ("trained in FP32", "reason guard", "overflow_storm at", "30%", "--guard stormy"):
        assert said in told

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
    daemon.wait_for(lambda: state(daemon, "stormy") == ["tripped"], "to remember the storm")
    daemon.wait_for(lambda: in_force(daemon, "stormy") == [("fp32", "guard")], "to resume in FP32")
    in_fp16 = [("fp16", "default")]
    daemon.wait_for(lambda: in_force(daemon, "quick") == in_fp16, "to resume the neighbour")
    assert state(daemon, "quick") == ["watching"]

    done = daemon.cli("precision", "clear", "--guard", "stormy", "--reason", "let us see")
    assert done.returncode == 0, done.stderr
    daemon.wait_for(
        lambda: daemon.metrics().value("genesis_guard_trips_total", agent="stormy") == 1,
        "to relapse",
    )
    assert state(daemon, "stormy") == ["tripped"]
    history = daemon.json("precision", "explain", "stormy")["decisions"]
    assert [(decision["state"], decision["level"]) for decision in history] == [
        ("tripped", 2),
        ("probation", 1),
        ("tripped", 1),
    ]
    assert state(daemon, "quick") == ["watching"]


def test_a_fallback_of_the_worker_is_adopted(daemon) -> None:
    """Without the guard, only an override for this very agent sends the run back to FP16."""
    fallback, flag = [("fp32", "floor_policy")], [("fp32", "flag")]

    def precision(*arguments: str) -> None:
        done = daemon.cli("precision", *arguments, "--reason", "another try")
        assert done.returncode == 0, done.stderr

    daemon.configure(
        GENESIS_AGENTS__QUICK__ENABLED="false",
        GENESIS_GUARD_ENABLED="false",
        FP16_MIN_LOSS_SCALE=64,
    )
    daemon.start()
    daemon.wait_for(lambda: in_force(daemon, "stormy") == fallback, "to fall back")

    precision("set", "fp32", "--agent", "quick")
    precision("clear", "--agent", "quick")
    daemon.configure(GENESIS_PRECISION="bf16", ENABLE_FP16_TRAINING="false")
    daemon.wait_for(lambda: in_force(daemon, "stormy") == flag, "to obey the flag")
    daemon.configure(GENESIS_PRECISION="fp16", ENABLE_FP16_TRAINING="true")
    daemon.wait_for(lambda: in_force(daemon, "stormy") == fallback, "to remember the fallback")

    assert daemon.stop()[0] == 0
    daemon.start()
    daemon.wait_for(lambda: in_force(daemon, "stormy") == fallback, "to resume in FP32")
    in_order = ["default", "floor_policy", "flag", "floor_policy"]
    assert acknowledged(daemon) == in_order, "no half precision since the fallback"

    precision("set", "fp16", "--agent", "stormy")
    in_order += ["operator", "floor_policy"]
    daemon.wait_for(lambda: acknowledged(daemon) == in_order, "to fall back again")

    daemon.configure(GENESIS_GUARD_ENABLED="true")
    reloads = "genesis_config_reloads_total"
    daemon.wait_for(lambda: daemon.metrics().labels(reloads, result="applied"), "to reload")
    precision("set", "fp16", "--agent", "stormy")
    in_order += ["operator", "floor_policy", "guard"]
    daemon.wait_for(lambda: acknowledged(daemon) == in_order, "to be stopped by the guard")
    metrics = daemon.metrics()
    rollbacks = "genesis_precision_rollbacks_total"
    assert metrics.value(rollbacks, agent="stormy", reason="floor_policy") == 2
    assert metrics.value(rollbacks, agent="stormy", reason="guard") == 0
    [trip] = metrics.labels("genesis_guard_trips_total")
    assert trip["trigger"] == "scale_floor"


def acknowledged(daemon) -> list[str]:
    """Reasons of all acknowledgements, oldest first, without repetitions."""
    events = daemon.events("precision_changed")
    return [reason for reason, _ in itertools.groupby(events, lambda event: event.state.reason)]
