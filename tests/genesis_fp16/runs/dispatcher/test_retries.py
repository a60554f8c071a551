"""Attempts that fail, die or take too long: what is tried again, when and how often."""

import os
import signal
from contextlib import suppress

import pytest

from genesis_fp16.domain.run import RunState
from tests.genesis_fp16.postgres import on_each_database
from tests.genesis_fp16.runs.dispatcher.world import World, steps


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
    assert [attempt.error for attempt in world.store.attempts(run.id)] == ["it went wrong", None]


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


def test_a_worker_that_cannot_be_started_fails_its_run_only(world: World, finished) -> None:
    (world.settings.home / "runs").write_text("in the way")
    run = finished(world.enqueue())
    assert run.state is RunState.FAILED
    assert run.failures == 3
    assert "could not be started" in str(run.error)
    (world.settings.home / "runs").unlink()
    assert finished(world.enqueue()).state is RunState.SUCCEEDED


def test_a_worker_that_cannot_be_started_costs_no_run_beside_it(world: World, finished) -> None:
    world.configure(slots=3, max_attempts=1)
    runs = [world.enqueue(agent) for agent in "abc"]
    (world.settings.home / "runs").mkdir(exist_ok=True)
    (world.settings.home / "runs" / runs[1]).write_text("in the way")
    ended = [finished(run_id) for run_id in runs]
    assert [run.state for run in ended] == ["succeeded", "failed", "succeeded"]
    assert [run.failures for run in ended] == [0, 1, 0]


def test_a_round_tries_no_more_starts_than_there_are_free_slots(world: World) -> None:
    """Else a folder that cannot be written would let a long queue delay a rollback."""
    (world.settings.home / "runs").write_text("in the way")
    runs = [world.enqueue(agent) for agent in "abc"]
    world.tick()
    assert [len(world.store.attempts(run_id)) for run_id in runs] == [1, 0, 0]


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
        assert {attempt.ending for attempt in world.store.attempts(run_id)[:3]} == {
            "the disk was full"
        }
        full.unlink()
        assert finished(run_id).state is RunState.SUCCEEDED
