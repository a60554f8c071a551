"""A store that fails, is locked or holds what cannot be read, and errors in one run."""

import json
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.run import RunState
from genesis_fp16.settings import Settings
from infrastructure.events import PrecisionState
from tests.genesis_fp16.runs.dispatcher.world import FP16, FP32, World, steps


def test_a_worker_that_cannot_be_started_while_the_store_fails_ends_later(
    world: World, finished
) -> None:
    world.configure(slots=3)
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


def test_an_error_in_handling_one_run_spares_the_others(world: World, ticking, finished) -> None:
    world.configure(slots=2)
    for agent in "ab":
        world.behave(agent, steps=10**9)
    broken, healthy = world.enqueue("a"), world.enqueue("b")
    ticking(lambda: steps(world, broken) and steps(world, healthy))
    [attempt] = world.store.attempts(broken)
    del world.precision["a"]  # the decision for this agent raises from now on
    run = finished(broken)
    assert run.state is RunState.FAILED
    assert "KeyError" in str(run.error)
    assert world.run(healthy).state is RunState.RUNNING
    folder = attempt_folder(world.settings.home, attempt)
    assert json.loads((folder / "spec.json").read_text())["run_id"] == broken
    assert [world.recorder.states[run_id][-1] for run_id in (broken, healthy)] == [
        "failed",
        "running",
    ]


def test_a_run_that_cannot_be_handled_is_given_up_when_the_store_recovers(
    world: World, ticking, finished
) -> None:
    """Otherwise it would stay active there and block its agent for ever."""
    world.behave("a", steps=10**9)
    broken = world.enqueue("a")
    ticking(lambda: steps(world, broken))
    del world.precision["a"]
    with closing(sqlite3.connect(world.settings.home / "genesis.db")) as database:
        database.execute("ALTER TABLE attempts RENAME TO hidden")
        world.dispatcher.follow(world.now)  # needs no store, so it does not fail with it
        with pytest.raises(OperationalError, match="no such table"):
            world.tick()
        database.execute("ALTER TABLE hidden RENAME TO attempts")
    run = finished(broken)
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


def test_a_locked_store_delays_neither_precision_nor_the_end(
    world: World, ticking, until, home_settings: Settings
) -> None:
    """The change reaches the worker, its events are passed on, and its end is recorded later."""
    world.behave("a", steps=10**6)
    run_id = world.enqueue()
    ticking(lambda: world.run(run_id).state == "running")
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as database:
        database.isolation_level = None
        database.execute("BEGIN IMMEDIATE")
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
        database.execute("ROLLBACK")
    world.dispatcher.follow_and_record(world.now)
    assert world.run(run_id).state == "queued"
    assert world.recorder.states[run_id][-2:] == ["stopping", "queued"]


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
    ) as database:
        database.execute("UPDATE runs SET steps = 'abc'")
        world.begin()
        world.dispatcher.recover(world.now)
        beside, elsewhere = world.enqueue("a"), world.enqueue("b")
        run = finished(beside)
        assert run.state is RunState.FAILED
        assert "another run of its agent" in str(run.error)
        assert finished(elsewhere).state is RunState.SUCCEEDED
        world.behave_later(lost)
        database.execute("UPDATE runs SET steps = 0 WHERE steps = 'abc'")
    assert finished(lost).state is RunState.SUCCEEDED


def test_a_run_whose_attempt_cannot_be_read_fails(world: World, ticking, finished) -> None:
    world.behave("a", steps=10**9)
    run_id = world.enqueue("a")
    ticking(lambda: steps(world, run_id))
    world.dispatcher.kill_all()
    path = world.settings.home / "genesis.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE attempts SET events_offset = 'abc'")
    world.begin()
    world.dispatcher.recover(world.now)
    run = finished(run_id)
    assert run.state is RunState.FAILED
    assert "its attempt" in str(run.error)
    world.behave("a")
    assert finished(world.enqueue("a")).state is RunState.SUCCEEDED
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE attempts SET events_offset = 0 WHERE events_offset = 'abc'")
    world.begin()
    world.dispatcher.recover(world.now)
    assert world.run(run_id).error == run.error, "an ended run does not change"
