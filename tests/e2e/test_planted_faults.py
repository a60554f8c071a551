"""Every injected fault fires its own trigger, and no healthy agent is rolled back."""

from pathlib import Path

import pytest

from benchmarks.guard.agents import FAULTS, HEALTHY
from benchmarks.guard.trials import run_trials

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]

SETTINGS = {
    "GENESIS_SLOTS": 7,  # all end when the last is decided: none trains on for nothing
    "GENESIS_MAX_ATTEMPTS": 1,
    "GENESIS_CHECKPOINT_INTERVAL_SECONDS": 1,
}
PAUSE_SECONDS = 0.003  # for each batch: the guard decides by statistics of a second, not of a step
HEALTHY_EPOCHS = 8  # of 100 steps, and again in FP32; faults are found within 600


def _setting(agent: str, name: str) -> str:
    return f"GENESIS_AGENTS__{agent.replace('-', '_').upper()}__SETTINGS__{name}"


@pytest.mark.usefixtures("forked")
def test_faults_are_caught_and_the_healthy_left_alone(tmp_path: Path) -> None:
    """All but the drift of a held-out metric, which takes many runs: `benchmarks.guard` has it."""
    faults = {name: plan for name, plan in FAULTS.items() if name != "metric-drift"}
    healthy = dict(list(HEALTHY.items())[1:3])
    pauses = {_setting(name, "PAUSE_SECONDS"): PAUSE_SECONDS for name in {**faults, **healthy}}
    epochs = {_setting(name, "EPOCHS"): HEALTHY_EPOCHS for name in healthy}
    outcomes = run_trials(
        {**faults, **healthy}, tmp_path, pairs=1, seconds=1700, settings=SETTINGS | pauses | epochs
    )
    assert {outcome.agent: outcome.fired for outcome in outcomes} == {
        "overflow-forward": "nonfinite_loss",
        "overflow-backward": "scale_floor",
        "underflow": "underflow",
        "loss-drift": "loss_drift",
        "nan-in-data": "nonfinite_loss",
        **dict.fromkeys(healthy, ""),
    }
    # How many steps lie between depends on the machine: statistics come once a second.
    early = [outcome for outcome in outcomes if outcome.fired and outcome.step <= outcome.onset]
    assert early == []
    assert all(outcome.runs == 1 for outcome in outcomes)
