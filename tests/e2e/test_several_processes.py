"""One agent on two processes: live flip, death of a rank, stop, success, and nothing left over."""

import signal

import psutil
import pytest

from tests.preloaded import output_of

pytestmark = pytest.mark.e2e


def _processes(daemon) -> list[psutil.Process]:
    """What lives of the daemon's attempts: torchrun and the ranks, which write to their log."""
    return [
        process
        for process in psutil.process_iter()
        if (output := output_of(process)) is not None and output.is_relative_to(daemon.home)
    ]


def _rank_1(daemon) -> psutil.Process:
    rank_0 = daemon.worker()
    [rank_1] = (
        process for process in _processes(daemon) if process not in (rank_0, rank_0.parent())
    )
    return rank_1


@pytest.fixture
def training(make_daemon, train_without_end):
    """A daemon whose quick agent trains on two processes."""
    daemon = make_daemon()
    daemon.configure(GENESIS_AGENTS__QUICK__PROCESSES_PER_RUN=2)
    yield train_without_end(daemon)
    for process in _processes(daemon):
        process.kill()


def test_an_agent_on_two_processes_from_flip_to_success(training) -> None:
    assert len(_processes(training)) == 3

    for flag, expected in (("false", ("fp32", "flag")), ("true", ("fp16", "default"))):
        training.configure(ENABLE_FP16_TRAINING=flag)
        training.wait_for(lambda expected=expected: training.in_precision(*expected), str(expected))
    training.wait_for(lambda: training.events("checkpoint_saved"), "to checkpoint")
    assert len(training.events("started")) == 1
    steps = training.events("step_stats")
    assert sum(event.attempted for event in steps) == steps[-1].step

    checkpoint = training.events("checkpoint_saved")[-1].step
    _rank_1(training).kill()
    training.wait_for(lambda: training.events("resumed"), "to resume")
    assert training.events("resumed")[-1].step >= checkpoint
    error = training.events("finished")[0].error
    assert "rank 1 of 2" in error
    assert "SIGKILL" in error
    trained = len(training.events("step_stats"))
    training.wait_for(lambda: len(training.events("step_stats")) > trained, "to train on")

    code, _ = training.stop(signal.SIGTERM)
    assert (code, _processes(training)) == (0, [])
    assert training.events("finished")[-1].outcome == "stopped"
    stopped_at = training.events("step_stats")[-1].step
    assert training.events("checkpoint_saved")[-1].step == stopped_at

    (training.home / "agents/quick/enough").touch()  # see the agent
    training.start()
    training.wait_for(
        lambda: training.metrics().value("genesis_runs_total", result="succeeded") > 0,
        "to succeed",
    )
    assert training.events("resumed")[1].step == stopped_at
    assert training.stop()[0] == 0
    assert _processes(training) == []
