"""Trainer and rollout in BF16 disagree in a real worker, and the guard changes their precision."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

LIMIT = 5e-6  # between the mismatch of a small model in BF16 and in FP16


def installed(folder: Path, agent: str) -> Path:
    """*folder*, with the agent installed that ``module:class`` names, as ``rounding``."""
    metadata = folder / "rounding_agent-1.0.dist-info"
    metadata.mkdir(parents=True)
    for name in ("rounding_agent.py", "far_reference_agent.py"):
        shutil.copy(Path(__file__).with_name(name), folder)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rounding\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[genesis.agents]\nrounding = {agent}\n")
    return folder


@pytest.fixture
def daemon(tmp_path: Path, make_daemon: Callable[..., object]):
    """A daemon, not yet started, with a policy in BF16 that nobody chose."""
    folder = installed(tmp_path / "plugin", "rounding_agent:RoundingAgent")
    daemon = make_daemon(python_path=folder)
    daemon.configure(
        GENESIS_CPU_HALF="true",
        GENESIS_PRECISION="bf16",
        GENESIS_BASELINE_INTERVAL_STEPS=0,
        GENESIS_BASELINE_EVERY_RUNS=0,
        GENESIS_GUARD_MISMATCH_KL=LIMIT,
        GENESIS_GUARD_MISMATCH_SAMPLES=1,
        GENESIS_GUARD_WINDOW_STEPS=5,
        GENESIS_AGENTS__ROUNDING__SCHEDULE='"every 1s"',
    )
    return daemon


def in_force(daemon) -> list[tuple[str, str]]:
    labels = daemon.metrics().labels("genesis_precision_info", agent="rounding")
    return [(shown["effective"], shown["reason"]) for shown in labels]


def roles(daemon) -> dict[str, str]:
    """The type in which policy and rollout compute, as the worker has acknowledged it."""
    labels = daemon.metrics().labels("genesis_role_precision_info", agent="rounding")
    return {
        shown["role"]: shown["compute"]
        for shown in labels
        if shown["role"] in ("policy", "rollout")
    }


def explain(daemon) -> str:
    return daemon.cli("precision", "explain", "rounding").stdout


def state(daemon) -> list[str]:
    return [shown["state"] for shown in daemon.metrics().labels("genesis_guard_state")]


def test_the_guard_moves_the_guilty_roles_and_the_ladder_gives_them_back(daemon) -> None:
    daemon.start()
    daemon.wait_for(lambda: in_force(daemon) == [("fp16", "guard")], "to change the precision")

    assert roles(daemon) == {"policy": "fp16", "rollout": "fp16"}
    metrics = daemon.metrics()
    shown = metrics.value("genesis_mismatch_excess_kl", agent="rounding", pair="policy_rollout")
    reports = [event.report for event in daemon.events("mismatch_measured")]
    assert shown in [report.excess_k3 for report in reports], "of any sample: FP16's may have come"
    assert reports[0].policy == "bf16"
    assert reports[0].excess_k3 > LIMIT > reports[0].floor_k3
    assert metrics.value("genesis_guard_trips_total", agent="rounding", trigger="mismatch") == 1
    before, after = daemon.events("precision_changed")
    assert (before.state.effective, after.state.effective) == ("bf16", "fp16")
    assert len(daemon.events("started")) == 1, "the running job changed; nothing was restarted"
    daemon.wait_for(  # the store follows the metrics within a second
        lambda: "trained in FP16" in explain(daemon), "to record the precision"
    )
    told = explain(daemon)
    for said in (
        *("reason guard", "rollout:fp16/fp16/fp32", "Policy and rollout change to FP16"),
        *("(policy BF16, rollout BF16)", "Same tokens   fp32/fp32", "--guard rounding"),
    ):
        assert said in told, told

    daemon.configure(GENESIS_GUARD_MISMATCH_KL=1000)
    daemon.wait_for(
        lambda: daemon.metrics().labels("genesis_config_reloads_total", result="applied"),
        "to reload the limit",
    )
    done = daemon.cli("precision", "clear", "--guard", "rounding", "--reason", "a larger limit")
    assert done.returncode == 0, done.stderr
    daemon.wait_for(lambda: in_force(daemon) == [("bf16", "default")], "to return to BF16")
    assert roles(daemon) == {"policy": "bf16", "rollout": "bf16"}
    assert state(daemon) == ["probation"]
    assert len(daemon.events("started")) == 1

    (daemon.home / "agents" / "rounding" / "finish").touch()
    daemon.wait_for(lambda: state(daemon) == ["watching"], "to end the probation with the run")


def test_a_reference_that_fp16_cannot_hold_is_raised_alone(
    tmp_path: Path, make_daemon: Callable[..., object]
) -> None:
    folder = installed(tmp_path / "plugin", "far_reference_agent:FarReferenceAgent")
    daemon = make_daemon(python_path=folder)
    daemon.configure(
        GENESIS_CPU_HALF="true",
        GENESIS_BASELINE_INTERVAL_STEPS=0,
        GENESIS_BASELINE_EVERY_RUNS=0,
        GENESIS_GUARD_NONFINITE_LOSSES=5,
        GENESIS_AGENTS__ROUNDING__PRECISION="fp16",
        GENESIS_AGENTS__ROUNDING__SCHEDULE='"every 1s"',
    )
    daemon.start()
    daemon.wait_for(lambda: in_force(daemon) == [("fp32", "guard")], "to roll back")
    daemon.wait_for(lambda: in_force(daemon) == [("fp16", "agent")], "to descend")
    found = daemon.events("rung_searched")[-1]
    assert (found.cause, found.roles) == ("roles", {"reference": "fp32"}), found.reason
    state = daemon.events("precision_changed")[-1].state
    assert state.roles == {
        "policy": "fp32/fp16/fp32",
        "rollout": "fp16/fp16/fp32",
        "reference": "fp32/fp32/fp32",
    }
    applied = {"agent": "rounding", "outcome": "applied"}
    before = daemon.metrics().value("genesis_training_steps_total", **applied)
    daemon.wait_for(
        lambda: daemon.metrics().value("genesis_training_steps_total", **applied) > before + 30,
        "to train on",
    )
    daemon.wait_for(lambda: "reference in FP32 (other roles" in explain(daemon), "to store it")
    assert "FP32 in the reference suffices" in explain(daemon)
