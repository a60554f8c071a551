"""Trainer and rollout in BF16 disagree in a real worker, and the guard changes their precision."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

LIMIT = 5e-6  # between the mismatch of a small model in BF16 and in FP16


@pytest.fixture
def daemon(tmp_path: Path, make_daemon: Callable[..., object]):
    """A daemon, not yet started, with a policy in BF16 that nobody chose."""
    folder = tmp_path / "plugin"
    metadata = folder / "rounding_agent-1.0.dist-info"
    metadata.mkdir(parents=True)
    agent = Path(__file__).with_name("rounding_agent.py")
    (folder / agent.name).write_text(agent.read_text())
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rounding\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[genesis.agents]\nrounding = rounding_agent:RoundingAgent\n"
    )
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
