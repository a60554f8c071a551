"""The end of a daemon, and what the next one makes of the workers it finds."""

import json

import pytest

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.run import RunState
from tests.genesis_fp16.postgres import on_each_database
from tests.genesis_fp16.runs.dispatcher.world import World, out_of_reach, steps
from tests.patience import gone


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


def test_a_process_that_release_0_1_shared_between_runs_is_ended_with_its_tree(
    world: World, ticking, finished, until
) -> None:
    """It was one process of several attempts; each run goes on in a process of its own."""
    world.configure(slots=2, max_attempts=1)
    world.behave("a", hang=True, ignore_all=True, descendants=True)
    runs = [world.enqueue("a")]
    ticking(lambda: world.run(runs[0]).state is RunState.RUNNING)
    [shared] = world.store.attempts(runs[0])
    descendants = attempt_folder(world.settings.home, shared) / "descendants"
    until(descendants.exists)
    for agent in "bc":
        runs.append(world.enqueue(agent))
        beside = world.store.begin_attempt(runs[-1], f"shared by {agent}")
        assert beside is not None
        attempt_folder(world.settings.home, beside).mkdir(parents=True)
        worker = {"pid": shared.pid, "pid_started_at": shared.pid_started_at}
        world.store.update_attempt(beside.incarnation, **worker)
        world.store.move(runs[-1], RunState.RUNNING)
    (world.settings.home / "runs" / runs[1] / "step").write_text("2")  # its checkpoint
    world.behave_later(runs[0])
    world.begin()
    world.dispatcher.recover(world.now)
    world.tick()
    assert [world.run(run_id).state for run_id in runs] == ["stopping"] * 3
    world.jumped += world.settings.stop_timeout_seconds
    ended = [finished(run_id) for run_id in runs]
    assert [(run.state, run.failures) for run in ended] == [("succeeded", 0)] * 3
    pids = [shared.pid, *json.loads(descendants.read_text())]
    until(lambda: all(gone(pid) for pid in pids))
    attempts = [world.store.attempts(run_id) for run_id in runs]
    assert [first.ending for first, _ in attempts] == ["stopped: orphaned"] * 3
    assert len({second.pid for _, second in attempts}) == 3
    assert [event.step for event in world.events(runs[1], "step_stats")] == [3], "it resumed"


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
