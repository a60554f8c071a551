"""Runs whose workers are jobs of an engine: they wait, outlive the daemon, and are lost."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.run import RunState
from genesis_fp16.executors import Executor, LocalExecutor
from genesis_fp16.runs.dispatcher import Dispatcher
from genesis_fp16.settings import AgentSettings, Settings
from genesis_fp16.store import Store
from infrastructure.events import EventTail, PrecisionState
from tests.genesis_fp16.executors.process_engine import ProcessCluster
from tests.patience import wait_until

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")


class Silent:
    def on_event(self, agent: str, run_id: str, event) -> None:
        pass

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        pass


class Daemons:
    """One daemon after the other on one home and one cluster; the clock of deadlines can jump."""

    def __init__(self, settings: Settings, worker: tuple[str, ...], stack: ExitStack) -> None:
        self.settings, self.worker, self._stack = settings, worker, stack
        self.cluster = stack.enter_context(closing(ProcessCluster()))
        self.jumped = 0.0
        self.precision = FP16
        self.executors: list[Executor] = []
        self.begin(self.cluster.executor(worker))

    def begin(self, executor: Executor, home: Path | None = None) -> None:
        """Start the next daemon; the one before gets no chance to say anything."""
        if home is not None:
            database = f"sqlite:///{self.settings.home.absolute()}/genesis.db"
            moved = {"home": home, "database_url": database}
            self.settings = self.settings.model_copy(update=moved)
        self.store = self._stack.enter_context(closing(Store.open(self.settings)))
        self.executors.append(executor)
        self.dispatcher = Dispatcher(
            self.store, executor, self.settings, {"a": "x:A"}, lambda _run: self.precision, Silent()
        )
        self.dispatcher.recover(self.now)

    @property
    def now(self) -> float:
        return time.monotonic() + self.jumped

    def until(self, holds: Callable[[], object], what: str) -> None:
        def step() -> object:
            self.dispatcher.tick(self.now)
            return holds()

        wait_until(step, what)

    def run(self):
        [run] = self.store.runs()
        return run

    def attempts(self) -> list:
        return self.store.attempts(self.run().id)

    def end(self) -> None:
        for job in list(self.cluster.jobs):
            self.cluster.delete(job)
        for executor in self.executors:
            executor.close()


@pytest.fixture
def daemons(home_settings: Settings, standin_command: tuple[str, ...]) -> Iterator[Daemons]:
    agents = {"a": AgentSettings(settings={"steps": 300})}
    settings = home_settings.model_copy(update={"agents": agents, "run_timeout_seconds": 1000.0})
    with ExitStack() as stack:
        daemons = Daemons(settings, standin_command, stack)
        daemons.store.enqueue("a", first_seed=0)
        yield daemons
        daemons.end()


def test_no_deadline_counts_while_a_job_waits(daemons: Daemons) -> None:
    with daemons.cluster.full():
        daemons.until(lambda: daemons.attempts() and daemons.attempts()[0].waiting, "to wait")
        [attempt] = daemons.attempts()
        assert attempt.job.startswith("genesis-a-")
        assert (attempt.pid, attempt.waiting) == (None, "in the queue of process: no room")
        daemons.dispatcher.tick(daemons.now)
        daemons.jumped += 5000.0  # beyond the deadlines of the start and of the run
        daemons.dispatcher.tick(daemons.now)
        assert daemons.run().state is RunState.STARTING
    daemons.until(lambda: daemons.run().finished, "to end")
    run, [attempt] = daemons.run(), daemons.attempts()
    assert (run.state, run.failures) == (RunState.SUCCEEDED, 0)
    assert attempt.waiting is None
    assert attempt.waited_seconds >= 5000
    assert run.active_seconds < 1000, "the wait does not count as training"


def test_what_an_engine_says_is_stored_as_plain_text(daemons: Daemons) -> None:
    """PostgreSQL takes no zero byte, and no database half a character: the run must not pay."""
    cluster = daemons.cluster
    cluster.is_full, cluster.full_reason = True, "no\0 room\ud800"
    waits = "in the queue of process: no room"
    daemons.until(lambda: waits in [attempt.waiting for attempt in daemons.attempts()], "to wait")
    daemons.store.request_cancel(daemons.run().id, actor="me", reason="not needed")
    daemons.until(lambda: daemons.run().finished, "to be cancelled")
    cluster.refusal = "no\0 quota\ud800"
    run_id = daemons.store.enqueue("a", first_seed=0).id
    daemons.until(lambda: daemons.store.attempts(run_id), "to begin")
    daemons.until(lambda: daemons.store.run(run_id).finished, "to fail")
    assert daemons.store.attempts(run_id)[0].error == "no quota"


@pytest.mark.parametrize("queued", [False, True], ids=["never asked for", "in the queue"])
def test_a_job_that_never_started_is_cancelled_while_its_engine_is_down(
    daemons: Daemons, queued: bool
) -> None:
    cluster = daemons.cluster
    cluster.is_full = True
    if queued:
        daemons.until(lambda: len(cluster.queue) == 1, "to wait in the queue")
    with cluster.unreachable():
        daemons.until(
            lambda: any("down" in (attempt.waiting or "") for attempt in daemons.attempts()),
            "to wait",
        )
        daemons.store.request_cancel(daemons.run().id, actor="me", reason="not needed")
        daemons.until(lambda: daemons.run().finished, "to be cancelled")
    assert daemons.run().state is RunState.CANCELLED
    cluster.is_full = False
    for job in list(cluster.queue.values()):  # the engine starts it all the same
        cluster.start(job)
    cluster.close()
    folder = attempt_folder(daemons.settings.home, daemons.attempts()[0])
    assert not (folder / "events.ndjson").exists()


def test_the_next_daemon_adopts_a_run_that_trains(daemons: Daemons) -> None:
    daemons.until(lambda: daemons.run().steps > 10, "to train")
    daemons.begin(daemons.cluster.executor(daemons.worker))
    daemons.jumped += daemons.settings.start_timeout_seconds  # it has started long ago
    daemons.until(lambda: daemons.run().finished, "to end")
    run, [attempt] = daemons.run(), daemons.attempts()
    assert (run.state, run.failures, run.steps) == (RunState.SUCCEEDED, 0, 300)
    assert attempt.exit_code == 0


def test_a_job_keeps_its_precision_until_the_next_daemon_knows_the_device(
    daemons: Daemons,
) -> None:
    daemons.until(lambda: daemons.run().steps > 10, "to train")
    folder = attempt_folder(daemons.settings.home, daemons.attempts()[0])

    def obeyed() -> list[PrecisionState]:
        events = EventTail(folder / "events.ndjson").read()
        return [event.state for event in events if event.kind == "precision_changed"]

    daemons.precision = PrecisionState(requested="fp16", effective="fp32", reason="device_unknown")
    daemons.begin(daemons.cluster.executor(daemons.worker))
    reached = daemons.run().steps
    daemons.until(lambda: daemons.run().steps > reached + 20, "to train on")
    assert obeyed() == [FP16]
    flag = PrecisionState(requested="fp16", effective="fp32", reason="flag")
    daemons.precision = flag
    daemons.until(lambda: obeyed() == [FP16, flag], "to obey the flag")


def test_a_daemon_without_the_engine_ends_the_job_and_goes_on_here(daemons: Daemons) -> None:
    daemons.until(lambda: daemons.run().steps > 10, "to train")
    [process] = daemons.cluster.jobs.values()
    with capture_logs() as logs:
        daemons.begin(LocalExecutor(daemons.worker))
    assert "job_given_up" in [entry["event"] for entry in logs]
    daemons.until(lambda: daemons.run().finished, "to end")
    assert process.poll() is not None, "two workers trained one run"
    run = daemons.run()
    assert (run.state, run.failures, len(daemons.attempts())) == (RunState.SUCCEEDED, 0, 2)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
def test_a_daemon_with_another_home_ends_the_job_before_it_starts_over(
    daemons: Daemons, tmp_path: Path, recorded: bool
) -> None:
    daemons.until(lambda: daemons.run().steps > 10, "to train")
    [process] = daemons.cluster.jobs.values()
    [attempt] = daemons.attempts()
    if not recorded:  # its daemon died right after it had asked for the job
        daemons.store.update_attempt(attempt.incarnation, job=None)
    with daemons.cluster.unreachable():
        daemons.begin(daemons.cluster.executor(daemons.worker), home=tmp_path / "other")
        daemons.until(lambda: "is down" in (daemons.attempts()[0].waiting or ""), "to wait")
        assert f"{attempt.job} of another home" in str(daemons.attempts()[0].waiting)
        daemons.jumped += 5000.0  # beyond the deadlines of the stop and of the run
        with capture_logs() as logs:
            daemons.dispatcher.tick(daemons.now)
        assert "worker_killed" in [entry["event"] for entry in logs], "it may still run"
        assert daemons.run().state is RunState.STOPPING
    daemons.until(lambda: len(daemons.attempts()) > 1, "to start over")
    assert process.poll() is not None, "two workers trained one run"
    assert daemons.attempts()[0].waiting is None
    daemons.until(lambda: daemons.run().finished, "to end")
    run = daemons.run()
    assert (run.state, run.failures, run.steps) == (RunState.SUCCEEDED, 0, 300)
    assert len(daemons.attempts()) == 2


def test_no_kill_is_logged_of_a_job_of_another_home_that_has_ended(
    daemons: Daemons, tmp_path: Path
) -> None:
    """Its end is believed once the engine has said so for a while; the stop deadline may pass."""
    daemons.until(lambda: daemons.run().steps > 10, "to train")
    [name] = daemons.cluster.jobs
    daemons.cluster.delete(name)
    executor = daemons.cluster.executor(daemons.worker)
    executor._endings.grace_seconds = 10_000.0
    daemons.begin(executor, home=tmp_path / "other")
    daemons.until(lambda: executor._jobs[name].gone_at < math.inf, "the engine to say so")
    with capture_logs() as logs:
        daemons.jumped += daemons.settings.stop_timeout_seconds
        daemons.dispatcher.tick(daemons.now)
    assert executor._jobs[name].killed, "the engine may be mistaken"
    assert "worker_killed" not in [entry["event"] for entry in logs]
    executor._endings.grace_seconds = 0.0
    daemons.until(lambda: len(daemons.attempts()) > 1, "to start over")


def test_a_daemon_without_the_engine_names_the_job_that_it_cannot_end(
    daemons: Daemons, tmp_path: Path
) -> None:
    daemons.until(lambda: daemons.run().steps > 10, "to train")
    [attempt] = daemons.attempts()
    with capture_logs() as logs:
        daemons.begin(LocalExecutor(daemons.worker), home=tmp_path / "other")
    [warned] = [entry for entry in logs if entry["event"] == "job_not_ended"]
    assert (warned["job"], warned["log_level"]) == (attempt.job, "warning")
    daemons.until(lambda: daemons.run().finished, "to end")
    assert daemons.run().state is RunState.SUCCEEDED


def test_a_job_that_vanishes_is_a_failure_with_its_name(daemons: Daemons) -> None:
    endless = {"a": AgentSettings(settings={"steps": 10**6})}
    changes = {"max_attempts": 1, "agents": endless}
    daemons.dispatcher.settings = daemons.settings.model_copy(update=changes)
    daemons.until(lambda: daemons.run().steps > 10, "to train")
    [attempt] = daemons.attempts()
    daemons.cluster.delete(attempt.job)
    daemons.until(lambda: daemons.run().finished, "to end")
    assert daemons.run().state is RunState.FAILED
    assert f"{attempt.job} is gone without" in str(daemons.run().error)
