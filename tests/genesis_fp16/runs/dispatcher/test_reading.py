"""Reading of events: shares of a round, progress, damaged files, storage that fails."""

import os
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from genesis_fp16.domain.attempt import attempt_folder, events_path
from genesis_fp16.domain.run import RunState
from genesis_fp16.runs.dispatcher import READ_SECONDS, SAVE_BYTES, SAVE_INTERVAL_SECONDS
from infrastructure.events import EventWriter
from infrastructure.events.event import Finished, PrecisionChanged, StepStats
from tests.genesis_fp16.runs.dispatcher.world import FP16, World, out_of_reach, steps


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
    silent, busy = orphans(200)
    [attempt] = world.store.attempts(silent)
    events_path(world.settings.home, attempt).unlink()
    world.dispatcher.clock = clock_of(seconds_per_look=READ_SECONDS / 40)
    world.dispatcher.recover(world.now)
    world.dispatcher.follow_and_record(world.now)
    read = Counter(run_id for run_id, _ in world.recorder.events)
    assert read[silent] == 0
    assert read[busy] > 30


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
    damaged, healthy = orphans(20)
    [attempt] = world.store.attempts(damaged)
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
    assert (refused["run_id"], refused["malformed_lines"]) == (damaged, 1)
    assert world.run(damaged).state is RunState.FAILED
    assert "must not be replaced by a link, a pipe" in str(world.run(damaged).error)
    assert str(path) in str(world.run(damaged).error)
    assert world.run(healthy).state is RunState.SUCCEEDED


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
