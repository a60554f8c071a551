"""A run whose jobs share a bucket with the daemon and no folder: rollback, death, end."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Daemon
from tests.genesis_fp16.executors.contract import ROLLBACK_SECONDS
from tests.patience import crowding


def live_through(daemon: Daemon, kill: Callable[[str], None]) -> float:
    """Roll back the run that trains, kill its job, and see the next one finish it.

    Args:
        kill: Kills every process of the job of that name, as a power cut.

    Returns:
        Seconds from the change of the flag to the worker's acknowledgement.
    """
    [run] = [known["id"] for known in daemon.json("runs") if known["state"] == "running"]

    def jobs() -> list[str]:
        return [attempt["job"] for attempt in daemon.json("runs", "show", run)["attempts"]]

    daemon.configure(ENABLE_FP16_TRAINING="false")
    changed = time.monotonic()
    daemon.wait_for(lambda: daemon.in_precision("fp32", "flag"), "to roll back")
    took = time.monotonic() - changed
    assert took < ROLLBACK_SECONDS * crowding()

    daemon.wait_for(lambda: daemon.events("checkpoint_saved"), "to save a checkpoint")
    agent_folder = daemon.home / "agents" / "quick"
    (agent_folder / "enough").touch()  # the next job finds it, and ends after an epoch
    daemon.configure(GENESIS_AGENTS__QUICK__SCHEDULE='"every 1d"')
    known = daemon.events("checkpoint_saved")[-1].step
    kill(jobs()[0])
    daemon.wait_for(
        lambda: daemon.metrics().value("genesis_runs_total", agent="quick", result="succeeded"),
        "to finish the run in another job",
    )
    [resumed] = daemon.events("resumed")
    assert resumed.step >= known, "a file arrives before the event that announces it"
    assert Path(resumed.path).name == f"step-{resumed.step:010d}.pt"
    assert [event.outcome for event in daemon.events("finished")] == ["done"]
    assert (agent_folder / "published.pt").exists(), "its model did not arrive"
    assert len(jobs()) == 2
    return took
