"""Runs through real worker processes: slots, retries, deadlines, orphans, commands."""

import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError
from structlog.testing import capture_logs

from genesis_fp16.domain.attempt import attempt_folder, events_path
from genesis_fp16.domain.last_training import LastTraining
from genesis_fp16.domain.pause import Pause
from genesis_fp16.domain.run import TRANSITIONS, Run, RunState
from genesis_fp16.executors import Handle, LocalExecutor
from genesis_fp16.plugins.agent_folder import write_last_training
from genesis_fp16.runs.active_attempt import LONGEST_BACKLOG
from genesis_fp16.runs.dispatcher import (
    READ_SECONDS,
    SAVE_BYTES,
    SAVE_INTERVAL_SECONDS,
    Dispatcher,
)
from genesis_fp16.settings import AgentSettings, Settings
from genesis_fp16.store import Store
from infrastructure.events import EventTail, EventWriter, PrecisionState
from infrastructure.events.event import Finished, PrecisionChanged, StepStats
from tests.genesis_fp16.postgres import on_each_database
from tests.preloaded import STANDIN

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="operator")

PAUSE = Pause(agent="a", reason="moving", actor="ann", created_at=1.0)


class Recorder:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.states: dict[str, list[str]] = {}

    def on_event(self, agent: str, run_id: str, event) -> None:
        self.events.append((run_id, event.kind))

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        self.states.setdefault(run_id, []).append(state)


class World:
    """A dispatcher with agents a, b and c, whose behaviour is set, and a clock that can jump."""

    def __init__(self, settings: Settings, command: tuple[str, ...]) -> None:
        self.recorder, self.jumped = Recorder(), 0.0
        self.precision = dict.fromkeys("abc", FP16)
        self.settings, self._command = settings, command
        self._executors: list[LocalExecutor] = []
        self._stores = ExitStack()
        self.begin()

    def begin(self) -> None:
        """Become a new daemon that knows only what is stored."""
        self.store = self._stores.enter_context(closing(Store.open(self.settings)))
        fleet_command = (*self._command, "--fleet")
        self._executors.append(LocalExecutor(self._command, fleet_command=fleet_command))
        self.dispatcher = Dispatcher(
            self.store,
            self._executors[-1],
            self.settings,
            {"a": "x:A", "b": "x:B", "c": "x:C"},
            self._decide,
            self.recorder,
        )

    def _decide(self, run: Run) -> PrecisionState:
        self.asked = run
        return self.precision[run.agent]

    def end(self) -> bool:
        """Kill and reap the workers of all daemons so far; return whether all are gone."""
        self.dispatcher.kill_all()
        self.dispatcher.follow_and_record(self.now)
        attempts = [a for run in self.store.runs() for a in self.store.attempts(run.id) if a.pid]
        workers = [Handle(pid=a.pid, started_at=a.pid_started_at) for a in attempts]
        return all(each.poll(worker) for each in self._executors for worker in workers)

    def close(self) -> None:
        """Close the stores of all daemons so far."""
        self._stores.close()

    def configure(self, **update: object) -> None:
        self.settings = self.settings.model_copy(update=update)
        self.dispatcher.settings = self.settings

    def behave(self, agent: str, **how: object) -> None:
        agents = {**self.settings.agents, agent: AgentSettings(settings=how)}
        self.configure(agents=agents)

    def behave_later(self, run_id: str, **how: object) -> None:
        """Change what the further attempts of a run do, whose settings are fixed."""
        path = self.settings.home / "runs" / run_id / "behaviour.json"
        path.write_text(json.dumps(how))

    def have_trained(self, *agents: str) -> None:
        """Let the last trainings of *agents* have had one shape."""
        for agent in agents:
            folder = self.settings.home / "agents" / agent
            folder.mkdir(parents=True, exist_ok=True)
            last = LastTraining(shape="1f", collect_seconds=1.0, train_seconds=2.0)
            write_last_training(folder, last)

    def processes(self, run_ids: list[str]) -> list[int | None]:
        """Process of the newest attempt of each run."""
        return [self.store.attempts(run_id)[-1].pid for run_id in run_ids]

    def enqueue(self, agent: str = "a") -> str:
        return self.store.enqueue(agent, first_seed=0).id

    @property
    def now(self) -> float:
        return time.monotonic() + self.jumped

    def tick(self) -> None:
        self.dispatcher.tick(self.now)

    def run(self, run_id: str) -> Run:
        run = self.store.run(run_id)
        assert run is not None
        return run

    def events(self, run_id: str, kind: str) -> list:
        attempts = self.store.attempts(run_id)
        paths = [attempt_folder(self.settings.home, each) / "events.ndjson" for each in attempts]
        return [e for path in paths for e in EventTail(path).read() if e.kind == kind]


@pytest.fixture
def world(database: Settings, forked: None, monkeypatch: pytest.MonkeyPatch, until):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    world = World(database, (sys.executable, "-P", "-m", STANDIN))
    yield world
    until(world.end)
    world.close()


@pytest.fixture
def ticking(world: World, until) -> Callable[[Callable[[], object]], None]:
    """Run rounds until a condition holds."""

    def tick_until(holds: Callable[[], object]) -> None:
        def step() -> object:
            world.tick()
            return holds()

        until(step)

    return tick_until


@pytest.fixture
def finished(world: World, ticking) -> Callable[[str], Run]:
    def finish(run_id: str) -> Run:
        ticking(lambda: world.run(run_id).finished)
        return world.run(run_id)

    return finish


def steps(world: World, run_id: str) -> int:
    return len(world.events(run_id, "step_stats"))


@on_each_database
def test_a_run_succeeds_and_its_events_are_passed_on_and_stored(world: World, finished) -> None:
    run_id = world.enqueue()
    run = finished(run_id)
    assert (run.state, run.published, run.reason, run.steps) == ("succeeded", True, "better", 3)
    assert run.metrics == {"base": 1.0}
    assert run.precision == {"requested": "fp16", "effective": "fp16", "reason": "default"}
    assert run.error is None
    assert world.recorder.states[run_id] == ["queued", "starting", "running", "succeeded"]
    assert [kind for _, kind in world.recorder.events] == [
        *("started", "precision_changed"),
        *["step_stats"] * 3,
        *("evaluated", "published", "finished"),
    ]
    [attempt] = world.store.attempts(run_id)
    events = attempt_folder(world.settings.home, attempt) / "events.ndjson"
    assert attempt.events_offset == events.stat().st_size


@on_each_database
def test_slots_limit_the_runs_and_the_longest_due_starts_first(world: World, ticking) -> None:
    world.configure(slots=2)
    for agent in "abc":
        world.behave(agent, steps=10**9)
    runs = [world.enqueue(agent) for agent in "abc"]
    ticking(lambda: all(steps(world, run_id) for run_id in runs[:2]))
    assert world.dispatcher.busy == 2
    assert world.dispatcher.queued == 1
    assert world.run(runs[2]).state is RunState.QUEUED
    world.store.request_cancel(runs[0], actor="me", reason="enough")
    ticking(lambda: steps(world, runs[2]))
    assert world.run(runs[0]).state is RunState.CANCELLED


@on_each_database
def test_one_run_of_an_agent_at_a_time(world: World, ticking, finished) -> None:
    world.configure(slots=3)
    first, second = world.enqueue(), world.enqueue()
    ticking(lambda: world.run(first).active)
    assert world.run(second).state is RunState.QUEUED
    assert finished(second).state == finished(first).state == "succeeded"


@on_each_database
def test_a_failure_is_retried_until_the_attempts_are_used_up(world: World, finished) -> None:
    world.behave("a", exit=3, failing_attempts=2)
    run = finished(world.enqueue())
    assert (run.state, run.failures, run.error) == ("succeeded", 2, None)
    assert [a.exit_code for a in world.store.attempts(run.id)] == [3, 3, 0]

    world.behave("a", exit=3)
    run = finished(world.enqueue())
    assert (run.state, run.failures, run.error) == ("failed", 3, "it went wrong")
    assert len(world.store.attempts(run.id)) == 3


def test_each_attempt_keeps_the_reason_of_its_failure(world: World, finished) -> None:
    world.behave("a", exit=3, failing_attempts=1)
    run = finished(world.enqueue())
    assert (run.state, run.error) == ("succeeded", None)
    assert [each.error for each in world.store.attempts(run.id)] == ["it went wrong", None]


def test_exit_code_0_without_a_final_event_is_a_failure(world: World, finished) -> None:
    """Agent code can end the process by ``os._exit(0)``."""
    world.behave("a", exit=0)
    run = finished(world.enqueue())
    assert (run.state, run.failures) == ("failed", 3)


def test_a_retry_waits_for_its_backoff(world: World, ticking) -> None:
    world.configure(retry_backoff_seconds=3600.0)
    world.behave("a", exit=1)
    run_id = world.enqueue()
    ticking(lambda: world.run(run_id).failures == 1)
    for _ in range(3):
        world.tick()
    assert world.run(run_id).state is RunState.QUEUED
    assert len(world.store.attempts(run_id)) == 1


def test_a_wrong_configuration_is_not_retried(world: World, finished) -> None:
    world.behave("a", exit=78)
    run = finished(world.enqueue())
    assert run.state is RunState.FAILED
    assert len(world.store.attempts(run.id)) == 1


def test_a_killed_worker_resumes_in_another_attempt(world: World, finished) -> None:
    world.behave("a", kill=signal.SIGKILL)
    run = finished(world.enqueue())
    assert run.state is RunState.SUCCEEDED
    assert [(a.signal, a.exit_code) for a in world.store.attempts(run.id)] == [(9, None), (None, 0)]

    world.configure(max_attempts=1)
    run = finished(world.enqueue())
    assert run.state is RunState.CRASHED
    assert "killed by signal 9; see " in str(run.error)
    assert "free space" in str(run.error)
    assert str(run.error).endswith("worker.log")


def test_a_worker_that_never_starts_is_timed_out(world: World, ticking, finished) -> None:
    world.configure(max_attempts=1, stop_timeout_seconds=5.0, start_timeout_seconds=60.0)
    world.behave("a", no_start=True)
    run_id = world.enqueue()
    ticking(lambda: world.store.attempts(run_id)[:1] and world.store.attempts(run_id)[0].pid)
    world.jumped += 60
    world.tick()
    assert world.run(run_id).state is RunState.STOPPING
    world.tick()
    assert world.dispatcher.busy == 1, "it has until the stop deadline"
    world.jumped += 5
    run = finished(run_id)
    assert run.state is RunState.TIMED_OUT
    assert world.store.attempts(run_id)[0].ending == "stopped: start_timeout"


def test_a_silent_worker_is_stopped_and_retried(world: World, ticking, finished) -> None:
    world.behave("a", hang=True, ignore_all=True)
    run_id = world.enqueue()
    ticking(lambda: world.run(run_id).state is RunState.RUNNING)
    world.behave_later(run_id)
    world.jumped += world.settings.no_progress_timeout_seconds
    world.tick()
    world.jumped += world.settings.stop_timeout_seconds
    run = finished(run_id)
    assert run.state is RunState.SUCCEEDED
    assert [a.ending for a in world.store.attempts(run_id)] == [
        "stopped: no_progress",
        "exit code 0",
    ]


def test_a_run_out_of_time_is_not_retried(world: World, ticking, finished) -> None:
    world.behave("a", steps=10**9)
    run_id = world.enqueue()
    ticking(lambda: steps(world, run_id))
    world.jumped += world.settings.run_timeout_seconds
    assert finished(run_id).state is RunState.TIMED_OUT
    assert len(world.store.attempts(run_id)) == 1


@on_each_database
def test_a_queued_run_can_be_cancelled(world: World, finished) -> None:
    world.configure(slots=1)
    run_id = world.enqueue("unknown-agent")
    world.tick()
    assert world.run(run_id).state is RunState.QUEUED, "its agent may come back"
    world.store.request_cancel(run_id, actor="me", reason="not needed")
    assert finished(run_id).state is RunState.CANCELLED
    assert world.recorder.states[run_id] == ["queued", "cancelled"]


def test_a_paused_agent_starts_no_run_and_lets_others_pass(world: World, ticking, finished) -> None:
    mine, other = world.enqueue("a"), world.enqueue("b")
    world.dispatcher.pauses = {"a": PAUSE}
    assert finished(other).state is RunState.SUCCEEDED
    world.tick()
    assert world.run(mine).state is RunState.QUEUED
    assert world.dispatcher.queued == 0, "it does not wait for a slot"
    world.dispatcher.pauses = {}
    assert finished(mine).state is RunState.SUCCEEDED
    world.dispatcher.pauses = {None: replace(PAUSE, agent=None)}
    late = world.enqueue("c")
    world.store.request_cancel(late, actor="me", reason="enough")
    assert finished(late).state is RunState.CANCELLED, "also while it is paused"


def test_a_run_under_way_goes_on_through_a_pause_or_is_stopped_and_resumed(
    world: World, ticking, finished
) -> None:
    world.behave("a", steps=10**9)
    run_id = world.enqueue()
    ticking(lambda: steps(world, run_id))
    world.dispatcher.pauses = {"a": PAUSE}
    before = steps(world, run_id)
    ticking(lambda: steps(world, run_id) > before)
    world.dispatcher.pauses = {"a": replace(PAUSE, stops_runs=True)}
    ticking(lambda: world.run(run_id).state is RunState.QUEUED)
    [attempt] = world.store.attempts(run_id)
    assert attempt.ending == "stopped: pause"
    for _ in range(3):
        world.tick()
    assert world.run(run_id).state is RunState.QUEUED
    world.behave_later(run_id, steps=3)
    world.dispatcher.pauses = {}
    run = finished(run_id)
    assert (run.state, run.failures) == (RunState.SUCCEEDED, 0)
    assert len(world.store.attempts(run_id)) == 2


def test_precision_is_decided_for_a_run_that_has_begun(world: World, finished) -> None:
    """The run begins with its first attempt and keeps that time in the next."""
    world.behave("a", exit=1, failing_attempts=1)
    run_id = world.enqueue()
    world.tick()
    begun_at = world.asked.started_at
    assert begun_at == world.run(run_id).started_at is not None
    assert finished(run_id).failures == 1
    assert world.asked.started_at == begun_at


@on_each_database
def test_precision_follows_the_decision(world: World, ticking) -> None:
    world.behave("a", steps=10**9)
    run_id = world.enqueue()
    ticking(lambda: steps(world, run_id))
    for state in (FP32, FP16):
        world.precision["a"] = state
        ticking(lambda state=state: world.events(run_id, "precision_changed")[-1].state == state)
    assert [e.state for e in world.events(run_id, "precision_changed")] == [FP16, FP32, FP16]


@on_each_database
def test_a_shutdown_stops_at_a_checkpoint_and_the_next_daemon_resumes(
    world: World, ticking, finished, until
) -> None:
    world.configure(max_attempts=1)
    world.behave("a", steps=10**9)
    run_id = world.enqueue()
    ticking(lambda: steps(world, run_id) > 2)
    world.dispatcher.stop_all(world.now)

    def stopped() -> bool:
        world.dispatcher.follow_and_record(world.now)
        return world.dispatcher.busy == 0

    until(stopped)
    run = world.run(run_id)
    assert (run.state, run.failures) == (RunState.QUEUED, 0)

    world.behave_later(run_id, steps=run.steps + 2)
    world.begin()
    world.dispatcher.recover(world.now)
    assert finished(run_id).state is RunState.SUCCEEDED
    counted = [event.step for event in world.events(run_id, "step_stats")]
    assert counted == list(range(1, run.steps + 3)), "no step twice, none left out"


@on_each_database
def test_an_orphan_that_hangs_is_killed_and_resumed(world: World, ticking, finished) -> None:
    world.behave("a", hang=True, ignore_all=True)
    run_id = world.enqueue()
    ticking(lambda: world.run(run_id).state is RunState.RUNNING)
    world.behave_later(run_id)
    world.begin()
    world.dispatcher.recover(world.now)
    world.tick()
    assert world.run(run_id).state is RunState.STOPPING
    assert world.dispatcher.busy == 1, "the slot is taken until the orphan is gone"
    world.jumped += world.settings.stop_timeout_seconds
    assert finished(run_id).state is RunState.SUCCEEDED
    assert world.store.attempts(run_id)[0].ending == "stopped: orphaned"
    assert world.run(run_id).failures == 0


@pytest.mark.parametrize(
    ("how", "state", "attempts"),
    [({}, "succeeded", 1), ({"exit": 78}, "failed", 1), ({"exit": 1}, "succeeded", 2)],
)
def test_the_last_event_of_an_orphan_decides(
    world: World, finished, until, how: dict, state: str, attempts: int
) -> None:
    """It ended while no daemon ran, so its exit code is unknown."""
    world.behave("a", **how)
    run_id = world.enqueue()
    world.tick()
    until(lambda: world.store.attempts(run_id) and world.events(run_id, "finished"))
    world.behave_later(run_id)
    world.begin()
    world.dispatcher.recover(world.now)
    assert finished(run_id).state == state
    assert len(world.store.attempts(run_id)) == attempts


def test_a_worker_that_cannot_be_started_fails_its_run_only(world: World, finished) -> None:
    (world.settings.home / "runs").write_text("in the way")
    run = finished(world.enqueue())
    assert run.state is RunState.FAILED
    assert run.failures == 3
    assert "could not be started" in str(run.error)
    (world.settings.home / "runs").unlink()
    assert finished(world.enqueue()).state is RunState.SUCCEEDED


def test_a_fleet_that_cannot_be_started_is_charged_to_the_run_that_prevents_it(
    world: World, finished
) -> None:
    world.configure(fleet="auto", max_attempts=1)
    world.have_trained(*"abc")
    runs = [world.enqueue(agent) for agent in "abc"]
    (world.settings.home / "runs").mkdir(exist_ok=True)
    (world.settings.home / "runs" / runs[1]).write_text("in the way")
    ended = [finished(run_id) for run_id in runs]
    assert [run.state for run in ended] == ["succeeded", "failed", "succeeded"]
    assert [run.failures for run in ended] == [0, 1, 0]


def test_a_fleet_that_cannot_be_started_while_the_store_fails_ends_later(
    world: World, finished
) -> None:
    world.configure(fleet="auto")
    world.have_trained(*"abc")
    runs = [world.enqueue(agent) for agent in "abc"]
    (world.settings.home / "runs").write_text("in the way")
    with closing(sqlite3.connect(world.settings.home / "genesis.db")) as database:
        database.execute(
            "CREATE TRIGGER refuses BEFORE UPDATE OF finished_at ON attempts "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
        with pytest.raises(IntegrityError, match="refused"):
            world.tick()
        database.execute("DROP TRIGGER refuses")
    (world.settings.home / "runs").unlink()
    assert [finished(run_id).state for run_id in runs] == ["succeeded"] * 3


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")
def test_a_worker_without_room_for_its_files_is_started_later(
    world: World, ticking, finished, small_disk
) -> None:
    with small_disk(world.settings.home / "runs"):
        full = world.settings.home / "runs" / "fill"
        with suppress(OSError):
            full.write_bytes(bytes(5 << 20))
        run_id = world.enqueue()
        ticking(lambda: len(world.store.attempts(run_id)) > 3)
        run = world.run(run_id)
        assert (run.failures, run.finished) == (0, False)
        assert {each.ending for each in world.store.attempts(run_id)[:3]} == {"the disk was full"}
        full.unlink()
        assert finished(run_id).state is RunState.SUCCEEDED


def test_an_error_in_handling_one_run_spares_the_others(world: World, ticking, finished) -> None:
    world.configure(slots=2)
    for agent in "ab":
        world.behave(agent, steps=10**9)
    one, other = world.enqueue("a"), world.enqueue("b")
    ticking(lambda: steps(world, one) and steps(world, other))
    [attempt] = world.store.attempts(one)
    del world.precision["a"]  # the decision for this agent raises from now on
    run = finished(one)
    assert run.state is RunState.FAILED
    assert "KeyError" in str(run.error)
    assert world.run(other).state is RunState.RUNNING
    folder = attempt_folder(world.settings.home, attempt)
    assert json.loads((folder / "spec.json").read_text())["run_id"] == one
    assert [world.recorder.states[each][-1] for each in (one, other)] == ["failed", "running"]


def test_a_run_that_cannot_be_handled_is_given_up_when_the_store_recovers(
    world: World, ticking, finished
) -> None:
    """Otherwise it would stay active there and block its agent for ever."""
    world.behave("a", steps=10**9)
    one = world.enqueue("a")
    ticking(lambda: steps(world, one))
    del world.precision["a"]
    with closing(sqlite3.connect(world.settings.home / "genesis.db")) as database:
        database.execute("ALTER TABLE attempts RENAME TO hidden")
        world.dispatcher.follow(world.now)  # needs no store, so it does not fail with it
        with pytest.raises(OperationalError, match="no such table"):
            world.tick()
        database.execute("ALTER TABLE hidden RENAME TO attempts")
    run = finished(one)
    assert run.state is RunState.FAILED
    assert "KeyError" in str(run.error)
    world.precision["a"] = FP16
    world.behave("a", steps=3)
    assert finished(world.enqueue("a")).state is RunState.SUCCEEDED


def test_a_store_that_fails_while_an_attempt_begins_delays_its_run(world: World, finished) -> None:
    class FailsOnce(dict[str, PrecisionState]):
        failed = False

        def __getitem__(self, agent: str) -> PrecisionState:
            if not self.failed:
                self.failed = True
                raise OperationalError("SELECT", {}, sqlite3.OperationalError("disk I/O error"))
            return super().__getitem__(agent)

    world.precision = FailsOnce(a=FP16)
    run_id = world.enqueue("a")
    with pytest.raises(OperationalError):
        world.tick()
    run = finished(run_id)
    assert (run.state, run.failures) == (RunState.SUCCEEDED, 0)
    assert len(world.store.attempts(run_id)) == 2


def test_malformed_events_are_skipped(world: World, finished) -> None:
    world.behave("a", garbage=True)
    assert finished(world.enqueue()).state is RunState.SUCCEEDED


@pytest.fixture
def orphans(world: World) -> Callable[[int], list[str]]:
    """Runs of a and b whose workers wrote so many events and ended while no daemon ran."""
    world.configure(slots=2)

    def make(events: int) -> list[str]:
        runs = [world.enqueue(agent) for agent in "ab"]
        for run_id in runs:
            attempt = world.store.begin_attempt(run_id, run_id)
            assert attempt is not None
            path = events_path(world.settings.home, attempt)
            path.parent.mkdir(parents=True)
            with EventWriter(path) as emit:
                emit(PrecisionChanged(step=0, state=FP16, loss_scale=1.0))
                for step in range(1, events - 1):
                    emit(StepStats(step=step, applied=1, fp16=1, loss_scale=1.0, precision="fp16"))
                emit(Finished(outcome="done"))
        world.begin()
        return runs

    return make


def clock_of(*, seconds_per_look: float) -> Callable[[], float]:
    times = count(0.0, seconds_per_look)
    return lambda: next(times)


def test_each_round_reads_for_a_bounded_time_and_all_attempts_get_a_share(
    world: World, orphans: Callable[[int], list[str]]
) -> None:
    runs = orphans(200)
    world.dispatcher.clock = clock_of(seconds_per_look=READ_SECONDS / 40)
    world.dispatcher.recover(world.now)
    for _ in range(3):
        before = Counter(run_id for run_id, _ in world.recorder.events)
        world.dispatcher.follow_and_record(world.now)
        read = Counter(run_id for run_id, _ in world.recorder.events) - before
        assert 20 < read.total() < 40
        assert all(10 < read[run_id] < 25 for run_id in runs), read
    assert [world.run(run_id).state for run_id in runs] == ["starting"] * 2, "not over yet"
    rounds = 3
    while world.dispatcher.busy:
        world.dispatcher.follow_and_record(world.now)
        rounds += 1
    assert 10 <= rounds <= 20
    assert Counter(run_id for run_id, _ in world.recorder.events) == dict.fromkeys(runs, 200)
    assert [world.run(run_id).state for run_id in runs] == ["succeeded"] * 2


def test_what_one_attempt_does_not_need_is_for_the_other(
    world: World, orphans: Callable[[int], list[str]]
) -> None:
    one, other = orphans(200)
    [attempt] = world.store.attempts(one)
    events_path(world.settings.home, attempt).unlink()
    world.dispatcher.clock = clock_of(seconds_per_look=READ_SECONDS / 40)
    world.dispatcher.recover(world.now)
    world.dispatcher.follow_and_record(world.now)
    read = Counter(run_id for run_id, _ in world.recorder.events)
    assert read[one] == 0
    assert read[other] > 30


def test_a_restart_while_events_wait_counts_and_passes_on_each_once(
    world: World, orphans: Callable[[int], list[str]]
) -> None:
    runs = orphans(200)
    daemons = 0
    while not all(world.run(run_id).finished for run_id in runs):
        world.begin()
        daemons += 1
        world.dispatcher.clock = clock_of(seconds_per_look=READ_SECONDS / 40)
        world.dispatcher.recover(world.now)
        for _ in range(2):
            world.jumped += SAVE_INTERVAL_SECONDS
            world.dispatcher.follow_and_record(world.now)
    assert daemons > 3
    assert Counter(run_id for run_id, _ in world.recorder.events) == dict.fromkeys(runs, 200)
    for run_id in runs:
        run = world.run(run_id)
        assert (run.state, run.half_steps, run.fp16_steps) == ("succeeded", 198, 198)


def test_progress_is_saved_early_when_much_was_read(
    world: World, orphans: Callable[[int], list[str]]
) -> None:
    runs = orphans(SAVE_BYTES // 100)  # bytes of one event: about 400
    world.dispatcher.recover(world.now)
    world.dispatcher.clock = clock_of(seconds_per_look=READ_SECONDS / (SAVE_BYTES // 100))
    before = world.now
    world.dispatcher.follow_and_record(before)
    world.dispatcher.follow_and_record(before)
    assert all(world.store.attempts(run_id)[0].events_offset > SAVE_BYTES for run_id in runs)


@pytest.mark.parametrize(
    "replace_by",
    [lambda path: path.symlink_to("/dev/zero"), os.mkfifo, Path.mkdir],
    ids=["link", "pipe", "folder"],
)
def test_a_replaced_event_file_fails_its_run_only(
    world: World, orphans: Callable[[int], list[str]], replace_by: Callable[[Path], None]
) -> None:
    one, other = orphans(20)
    [attempt] = world.store.attempts(one)
    path = events_path(world.settings.home, attempt)
    path.write_bytes(b"no event\n" + path.read_bytes())
    world.dispatcher.clock = clock_of(seconds_per_look=READ_SECONDS / 10)
    world.dispatcher.recover(world.now)
    world.dispatcher.follow(world.now)
    path.unlink()
    replace_by(path)
    world.dispatcher.clock = time.monotonic
    with capture_logs() as lines:
        world.tick()
    [refused] = [line for line in lines if line["event"] == "events_refused"]
    assert (refused["run_id"], refused["malformed_lines"]) == (one, 1)
    assert world.run(one).state is RunState.FAILED
    assert f"must not be replaced by a link, a pipe, a device or a folder: '{path}'" in str(
        world.run(one).error
    )
    assert world.run(other).state is RunState.SUCCEEDED


@contextmanager
def out_of_reach(folder: Path) -> Iterator[None]:
    """Let the *folder* be away, as a share that fails; a worker goes on with its open files."""
    away = folder.with_name(f"{folder.name}-away")
    folder.rename(away)
    folder.write_text("not a folder")
    yield
    folder.unlink()
    away.rename(folder)


def test_storage_that_fails_for_a_while_is_waited_for(world: World, ticking, finished) -> None:
    world.behave("a", steps=10**9)
    run_id = world.enqueue()
    ticking(lambda: steps(world, run_id) > 2)
    [attempt] = world.store.attempts(run_id)
    with out_of_reach(attempt_folder(world.settings.home, attempt)):
        ticking(lambda: "Not a directory" in (world.store.attempts(run_id)[0].waiting or ""))
        world.jumped += world.settings.no_progress_timeout_seconds
        world.tick()
        world.tick()
        assert world.run(run_id).state is RunState.RUNNING
    ticking(lambda: world.store.attempts(run_id)[0].waiting is None)
    world.store.request_cancel(run_id, actor="me", reason="enough")
    run = finished(run_id)
    assert (run.state, len(world.store.attempts(run_id))) == (RunState.CANCELLED, 1)
    counted = [event.step for event in world.events(run_id, "step_stats")]
    assert run.steps == counted[-1], "nothing written meanwhile is lost"


def test_what_cannot_be_read_keeps_no_run_from_being_cancelled(
    world: World, ticking, finished
) -> None:
    run_id = world.enqueue()
    world.tick()
    [attempt] = world.store.attempts(run_id)
    with out_of_reach(attempt_folder(world.settings.home, attempt)):
        ticking(lambda: world.dispatcher.alive == 0)  # it has ended, and nobody knows how
        world.tick()
        assert world.run(run_id).active
        world.store.request_cancel(run_id, actor="me", reason="enough")
        assert finished(run_id).state is RunState.CANCELLED


def test_what_cannot_be_read_keeps_no_run_from_its_deadline(
    world: World, ticking, finished
) -> None:
    run_id = world.enqueue()
    world.tick()
    [attempt] = world.store.attempts(run_id)
    with out_of_reach(attempt_folder(world.settings.home, attempt)):
        ticking(lambda: world.dispatcher.alive == 0)
        world.tick()
        assert world.run(run_id).active
        world.jumped += world.settings.run_timeout_seconds
        assert finished(run_id).state is RunState.TIMED_OUT


def test_a_run_of_an_earlier_daemon_that_cannot_be_read_is_cancelled(
    world: World, ticking, finished
) -> None:
    world.behave("a", steps=10**9)
    run_id = world.enqueue()
    ticking(lambda: steps(world, run_id) > 2)
    [attempt] = world.store.attempts(run_id)
    with out_of_reach(attempt_folder(world.settings.home, attempt)):
        world.dispatcher.kill_all()
        world.begin()
        world.dispatcher.recover(world.now)
        ticking(lambda: "Not a directory" in (world.store.attempts(run_id)[0].waiting or ""))
        ticking(lambda: world.dispatcher.alive == 0)
        world.tick()
        assert world.run(run_id).active
        world.store.request_cancel(run_id, actor="me", reason="enough")
        assert finished(run_id).state is RunState.CANCELLED


def test_precision_is_sent_again_when_its_acknowledgement_may_be_lost(
    world: World, ticking
) -> None:
    """A worker that writes faster than the daemon reads loses events."""
    world.behave("a", steps=10**9, flood=2 * LONGEST_BACKLOG // 1000)
    run_id = world.enqueue()
    ticking(lambda: len(world.events(run_id, "precision_changed")) == 2)
    assert [event.state for event in world.events(run_id, "precision_changed")] == [FP16] * 2


def test_only_the_requested_run_is_started(world: World, until) -> None:
    one, other = world.enqueue("a"), world.enqueue("b")

    def other_finished() -> bool:
        world.dispatcher.tick(world.now, only=other)
        return world.run(other).finished

    until(other_finished)
    assert world.run(one).state is RunState.QUEUED


def test_every_announced_state_may_follow_the_one_before(world: World, finished) -> None:
    world.behave("a", exit=1, failing_attempts=1)
    run_id = world.enqueue()
    finished(run_id)
    states = [RunState(state) for state in world.recorder.states[run_id]]
    assert all(after in TRANSITIONS[before] for before, after in pairwise(states))
    assert states.count(RunState.QUEUED) == 2


def test_a_locked_store_delays_neither_precision_nor_the_end(
    world: World, ticking, until, home_settings: Settings
) -> None:
    """The change reaches the worker, its events are passed on, and its end is recorded later."""
    world.behave("a", steps=10**6)
    run_id = world.enqueue()
    ticking(lambda: world.run(run_id).state == "running")
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        world.precision["a"] = FP32

        def received() -> bool:
            world.dispatcher.follow(world.now)
            return len(world.events(run_id, "precision_changed")) == 2

        until(received)
        seen = len(world.recorder.events)
        until(lambda: world.dispatcher.follow(world.now) or len(world.recorder.events) > seen)
        world.dispatcher.stop_all(world.now)
        until(lambda: world.dispatcher.follow(world.now) or not world.dispatcher.alive)
        assert world.run(run_id).state == "running", "as the store has it"
        other.execute("ROLLBACK")
    world.dispatcher.follow_and_record(world.now)
    assert world.run(run_id).state == "queued"
    assert world.recorder.states[run_id][-2:] == ["stopping", "queued"]


def test_a_run_that_waits_since_the_clock_was_set_back_is_started(world: World, finished) -> None:
    ahead = Store.open(world.settings, clock=lambda: time.time() + 7200)
    with closing(ahead):
        run_id = ahead.enqueue("a", first_seed=0).id
    assert finished(run_id).state is RunState.SUCCEEDED


def test_a_run_beside_an_unreadable_one_fails_and_delays_no_other(
    world: World, ticking, finished
) -> None:
    """Once the row can be read again, its run resumes."""
    world.behave("a", steps=10**9)
    lost = world.enqueue("a")
    ticking(lambda: steps(world, lost) and world.run(lost).state is RunState.RUNNING)
    world.tick()  # a daemon that knew the run before its row was damaged would follow it
    world.dispatcher.kill_all()
    with closing(
        sqlite3.connect(world.settings.home / "genesis.db", isolation_level=None)
    ) as other:
        other.execute("UPDATE runs SET steps = 'abc'")
        world.begin()
        world.dispatcher.recover(world.now)
        beside, elsewhere = world.enqueue("a"), world.enqueue("b")
        run = finished(beside)
        assert run.state is RunState.FAILED
        assert "another run of its agent is active and cannot be read" in str(run.error)
        assert finished(elsewhere).state is RunState.SUCCEEDED
        world.behave_later(lost)
        other.execute("UPDATE runs SET steps = 0 WHERE steps = 'abc'")
    assert finished(lost).state is RunState.SUCCEEDED


def test_a_run_whose_attempt_cannot_be_read_fails(world: World, ticking, finished) -> None:
    world.behave("a", steps=10**9)
    run_id = world.enqueue("a")
    ticking(lambda: steps(world, run_id))
    world.dispatcher.kill_all()
    path = world.settings.home / "genesis.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE attempts SET events_offset = 'abc'")
    world.begin()
    world.dispatcher.recover(world.now)
    run = finished(run_id)
    assert run.state is RunState.FAILED
    assert "its attempt cannot be read" in str(run.error)
    world.behave("a")
    assert finished(world.enqueue("a")).state is RunState.SUCCEEDED
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE attempts SET events_offset = 0 WHERE events_offset = 'abc'")
    world.begin()
    world.dispatcher.recover(world.now)
    assert world.run(run_id).error == run.error, "an ended run does not change"


def test_waiting_runs_of_a_disabled_agent_are_cancelled(world: World) -> None:
    run_id = world.enqueue("b")
    world.configure(agents={"b": AgentSettings(enabled=False)})
    world.tick()
    run = world.run(run_id)
    assert run.state is RunState.CANCELLED
    assert "disabled" in str(run.error)
    assert world.recorder.states[run_id][-1] == "cancelled"


@pytest.fixture
def fleet(world: World, ticking) -> Callable[..., list[str]]:
    """Start runs of agents a, b and c in one worker; wait until all of them train."""

    def start(**behaviours: dict[str, object]) -> list[str]:
        world.configure(fleet="auto")
        world.have_trained(*"abc")
        for agent in "abc":
            world.behave(agent, **behaviours.get(agent, {"steps": 10**9}))
        runs = [world.enqueue(agent) for agent in "abc"]
        ticking(lambda: all(world.events(run_id, "precision_changed") for run_id in runs))
        return runs

    return start


def test_due_runs_of_one_shape_share_a_worker_and_a_slot(world: World, fleet, finished) -> None:
    runs = fleet(a={"steps": 5}, b={"steps": 80}, c={"steps": 160})
    assert len(set(world.processes(runs))) == 1
    assert (world.dispatcher.busy, world.dispatcher.under_way) == (1, 3)
    [first, *others] = [finished(run_id) for run_id in runs]
    assert [run.steps for run in (first, *others)] == [5, 80, 160]
    assert [run.state for run in (first, *others)] == ["succeeded"] * 3
    assert first.finished_at < others[0].finished_at < others[1].finished_at
    assert world.recorder.states[runs[0]] == ["queued", "starting", "running", "succeeded"]


def test_commands_reach_the_attempt_that_they_name(world: World, fleet, ticking) -> None:
    runs = fleet()
    world.precision["b"] = FP32
    ticking(lambda: len(world.events(runs[1], "precision_changed")) == 2)
    world.store.request_cancel(runs[0], actor="me", reason="enough")
    ticking(lambda: world.run(runs[0]).finished)
    assert world.run(runs[0]).state is RunState.CANCELLED
    before = steps(world, runs[2])
    ticking(lambda: steps(world, runs[2]) > before)
    last = [world.events(run_id, "precision_changed")[-1] for run_id in runs]
    assert [event.state.effective for event in last] == ["fp16", "fp32", "fp16"]


def test_the_death_of_a_fleet_counts_against_nobody_and_each_goes_on_alone(
    world: World, fleet, finished
) -> None:
    world.configure(max_attempts=1)
    runs = fleet()
    for run_id in runs:
        world.behave_later(run_id, steps=3)
    [pid] = set(world.processes(runs))
    os.kill(pid, signal.SIGKILL)
    ended = [finished(run_id) for run_id in runs]
    assert [(run.state, run.failures) for run in ended] == [("succeeded", 0)] * 3
    assert len(set(world.processes(runs))) == 3
    first_attempts = [world.store.attempts(run_id)[0] for run_id in runs]
    assert {each.ending for each in first_attempts} == {"with its fleet: killed by signal 9"}


def test_a_member_that_fails_is_retried_alone_while_the_others_go_on(
    world: World, fleet, ticking
) -> None:
    world.configure(slots=1)
    runs = fleet(a={"exit": 3, "failing_attempts": 1, "steps": 5})
    ticking(lambda: world.run(runs[0]).failures == 1)
    assert world.run(runs[0]).state is RunState.QUEUED, "the fleet has the only slot"
    world.configure(slots=2)
    ticking(lambda: world.run(runs[0]).finished)
    assert world.run(runs[0]).state is RunState.SUCCEEDED
    assert [world.run(run_id).state for run_id in runs[1:]] == ["running"] * 2


def test_a_member_that_hangs_costs_the_worker_and_the_others_go_on_alone(
    world: World, fleet, ticking
) -> None:
    world.configure(max_attempts=1)
    runs = fleet(a={"hang": True})
    world.store.request_cancel(runs[0], actor="me", reason="enough")
    ticking(lambda: world.run(runs[0]).state is RunState.STOPPING)
    world.jumped += world.settings.stop_timeout_seconds
    world.configure(slots=2)
    ticking(lambda: len(world.store.attempts(runs[2])) == 2 and world.run(runs[2]).active)
    assert world.run(runs[0]).state is RunState.CANCELLED
    assert [world.run(run_id).failures for run_id in runs[1:]] == [0, 0]


def test_a_shutdown_stops_every_member(world: World, fleet, ticking) -> None:
    runs = fleet()
    world.dispatcher.stop_all(world.now)
    ticking(lambda: not world.dispatcher.busy)
    assert [world.run(run_id).state for run_id in runs] == ["queued"] * 3
    assert [world.run(run_id).failures for run_id in runs] == [0] * 3


def test_the_next_daemon_adopts_every_member_of_a_fleet(world: World, fleet, until) -> None:
    runs = fleet()
    [pid] = set(world.processes(runs))
    world.begin()
    world.dispatcher.recover(world.now)
    assert world.dispatcher.busy == 1
    os.kill(pid, signal.SIGTERM)
    world.configure(slots=0)
    until(lambda: world.tick() or all(world.run(run_id).state == "queued" for run_id in runs))
    assert [world.run(run_id).failures for run_id in runs] == [0] * 3


def test_no_fleet_is_formed_unless_asked_for(world: World, ticking) -> None:
    world.have_trained(*"abc")
    runs = [world.enqueue(agent) for agent in "abc"]
    ticking(lambda: all(world.run(run_id).finished for run_id in runs))
    assert len(set(world.processes(runs))) == 3
