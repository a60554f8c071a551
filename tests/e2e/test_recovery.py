"""What is killed comes back, with no step done twice and none forgotten."""

import signal

import psutil
import pytest

pytestmark = pytest.mark.e2e


def _checkpointed(daemon) -> int:
    """Wait for a checkpoint that has steps in it; its step."""
    daemon.wait_for(lambda: daemon.events("checkpoint_saved"), 60, "to checkpoint")
    return daemon.events("checkpoint_saved")[-1].step


def _resumed(daemon, step: int) -> None:
    """Wait until the second attempt trains on, from *step* or later."""
    daemon.wait_for(lambda: daemon.events("resumed"), 90, "to resume")
    resumed = daemon.events("resumed")[-1]
    assert resumed.step >= step > 0
    daemon.wait_for(
        lambda: any(e.step > resumed.step for e in daemon.events("step_stats")), 60, "to train on"
    )
    [run] = daemon.json("runs")
    assert run["state"] == "running"
    assert len(daemon.json("runs", "show", run["id"])["attempts"]) == 2


def test_a_killed_worker_is_resumed_from_its_checkpoint(training) -> None:
    step = _checkpointed(training)
    training.worker().kill()
    _resumed(training, step)
    assert training.process.poll() is None
    assert training.get("/healthz")[0] == 200


def test_a_killed_daemon_leaves_an_orphan_that_the_next_one_resumes(training) -> None:
    _checkpointed(training)
    orphan = training.worker()
    training.kill9()
    psutil.wait_procs([orphan], timeout=20)
    assert training.worker() is None, "the orphan went on"
    last = training.events("checkpoint_saved")[-1]
    assert training.events("finished")[-1].outcome == "stopped"
    assert last.step == training.events("step_stats")[-1].step

    training.start()
    _resumed(training, last.step)


def test_a_stop_checkpoints_and_the_next_start_goes_on(training) -> None:
    _checkpointed(training)
    code, seconds = training.stop(signal.SIGTERM)
    assert code == 0
    assert seconds < 10
    last = training.events("checkpoint_saved")[-1]
    assert last.step == training.events("step_stats")[-1].step

    training.start()
    _resumed(training, last.step)


def test_a_second_daemon_refuses_and_names_the_first(daemon) -> None:
    daemon.start()
    second = daemon.cli("serve")
    assert second.returncode not in (0, None)
    assert str(daemon.process.pid) in second.stdout + second.stderr
    assert daemon.get("/readyz")[0] == 200
