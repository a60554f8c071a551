"""The end of a daemon, and what the next one makes of the workers it finds."""

import pytest

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.run import RunState
from tests.genesis_fp16.postgres import on_each_database
from tests.genesis_fp16.runs.dispatcher.world import World, out_of_reach, steps


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
