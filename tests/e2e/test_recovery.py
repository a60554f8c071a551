"""What is killed comes back, with no step done twice and none forgotten."""

import signal

import pytest

from tests.patience import crowding, wait_until

pytestmark = pytest.mark.e2e


def _checkpointed(daemon) -> tuple[int, int]:
    """Wait for a checkpoint that has steps in it; attempts up to now, and the checkpoint's step."""
    saved = len(daemon.events("checkpoint_saved"))
    daemon.wait_for(lambda: len(daemon.events("checkpoint_saved")) > saved, "to checkpoint")
    return len(daemon.events("started")), daemon.events("checkpoint_saved")[-1].step


def _resumed(daemon, attempts: int, step: int) -> None:
    """Wait until an attempt after *attempts* trains on, from *step* or later."""
    daemon.wait_for(lambda: len(daemon.events("resumed")) == attempts, "to resume")
    resumed = daemon.events("resumed")[-1]
    assert resumed.step >= step > 0
    daemon.wait_for(
        lambda: any(e.step > resumed.step for e in daemon.events("step_stats")), "to train on"
    )
    [run] = daemon.json("runs")
    assert run["state"] == "running"
    assert len(daemon.json("runs", "show", run["id"])["attempts"]) == attempts + 1


def test_a_killed_worker_is_resumed_from_its_checkpoint(training) -> None:
    attempts, step = _checkpointed(training)
    training.worker().kill()
    _resumed(training, attempts, step)
    assert training.process.poll() is None
    assert training.get("/healthz")[0] == 200


def test_a_killed_daemon_leaves_an_orphan_that_the_next_one_resumes(training) -> None:
    attempts, _ = _checkpointed(training)
    training.kill9()
    wait_until(lambda: training.worker() is None, "the orphan to end")
    last = training.events("checkpoint_saved")[-1]
    assert training.events("finished")[-1].outcome == "stopped"
    assert last.step == training.events("step_stats")[-1].step

    training.start()
    _resumed(training, attempts, last.step)


def test_a_stop_checkpoints_and_the_next_start_goes_on(training) -> None:
    attempts, _ = _checkpointed(training)
    code, seconds = training.stop(signal.SIGTERM)
    assert code == 0
    assert seconds < 10 * crowding()
    last = training.events("checkpoint_saved")[-1]
    assert last.step == training.events("step_stats")[-1].step

    training.start()
    _resumed(training, attempts, last.step)


def test_a_second_daemon_refuses_and_names_the_first(training) -> None:
    second = training.cli("serve")
    assert second.returncode not in (0, None)
    assert str(training.process.pid) in second.stdout + second.stderr
    assert training.get("/readyz")[0] == 200


def test_a_backup_of_a_serving_home_goes_on_elsewhere(training, make_daemon, tmp_path) -> None:
    attempts, step = _checkpointed(training)
    stops = training.log.count("stop_requested")  # of tests before
    said = training.cli("backup", str(tmp_path / "backup"))
    assert said.returncode == 0, said.stderr
    assert "read again and found right" in said.stdout
    other = make_daemon(tmp_path / "other")
    other.configure(
        **{k: v for k, v in training.settings.items() if "HOME" not in k and "PORT" not in k}
    )
    restored = other.json("restore", str(tmp_path / "backup"))
    assert (restored["runs"], restored["requeued"]) == (1, 1)
    other.start()  # beside the first daemon, whose worker goes on
    other.wait_for(lambda: len(other.events("resumed")) == attempts, "to resume")
    assert other.events("resumed")[-1].step >= step
    worker = training.worker()
    assert worker is not None
    assert worker.pid != other.worker().pid
    assert training.log.count("stop_requested") == stops
    assert len(training.events("started")) == attempts
