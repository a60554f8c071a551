"""Runs through real worker processes: their order, slots, pauses and ends."""

import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.pause import Pause
from genesis_fp16.domain.run import TRANSITIONS, RunState
from genesis_fp16.settings import AgentSettings
from genesis_fp16.store import Store
from tests.genesis_fp16.postgres import on_each_database
from tests.genesis_fp16.runs.dispatcher.world import World, steps

PAUSE = Pause(agent="a", reason="moving", actor="ann", created_at=1.0)


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
    world.tick()  # the queue is counted before runs are started from it
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
def test_a_queued_run_can_be_cancelled(world: World, finished) -> None:
    world.configure(slots=1)
    run_id = world.enqueue("unknown-agent")
    world.tick()
    assert world.run(run_id).state is RunState.QUEUED, "its agent may come back"
    world.store.request_cancel(run_id, actor="me", reason="not needed")
    assert finished(run_id).state is RunState.CANCELLED
    assert world.recorder.states[run_id] == ["queued", "cancelled"]


def test_a_paused_agent_starts_no_run_and_lets_others_pass(world: World, ticking, finished) -> None:
    paused, free = world.enqueue("a"), world.enqueue("b")
    world.dispatcher.pauses = {"a": PAUSE}
    assert finished(free).state is RunState.SUCCEEDED
    world.tick()
    assert world.run(paused).state is RunState.QUEUED
    assert world.dispatcher.queued == 0, "it does not wait for a slot"
    world.dispatcher.pauses = {}
    assert finished(paused).state is RunState.SUCCEEDED
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


def test_only_the_requested_run_is_started(world: World, until) -> None:
    waiting, requested = world.enqueue("a"), world.enqueue("b")

    def other_finished() -> bool:
        world.dispatcher.tick(world.now, only=requested)
        return world.run(requested).finished

    until(other_finished)
    assert world.run(waiting).state is RunState.QUEUED


def test_every_announced_state_may_follow_the_one_before(world: World, finished) -> None:
    world.behave("a", exit=1, failing_attempts=1)
    run_id = world.enqueue()
    finished(run_id)
    states = [RunState(state) for state in world.recorder.states[run_id]]
    assert all(after in TRANSITIONS[before] for before, after in pairwise(states))
    assert states.count(RunState.QUEUED) == 2


def test_a_run_that_waits_since_the_clock_was_set_back_is_started(world: World, finished) -> None:
    ahead = Store.open(world.settings, clock=lambda: time.time() + 7200)
    with closing(ahead):
        run_id = ahead.enqueue("a", first_seed=0).id
    assert finished(run_id).state is RunState.SUCCEEDED


def test_waiting_runs_of_a_disabled_agent_are_cancelled(world: World) -> None:
    run_id = world.enqueue("b")
    world.configure(agents={"b": AgentSettings(enabled=False)})
    world.tick()
    run = world.run(run_id)
    assert run.state is RunState.CANCELLED
    assert "disabled" in str(run.error)
    assert world.recorder.states[run_id][-1] == "cancelled"
