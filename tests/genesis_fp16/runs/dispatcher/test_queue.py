"""The queue with real workers: turns, priorities, quotas, and cancels that are final."""

import os
from datetime import datetime
from zoneinfo import ZoneInfo

from genesis_fp16.daemon.queue import read_queue
from genesis_fp16.domain.run import Ending, RunState, RunTransition
from genesis_fp16.plugins.probe import Plugin
from genesis_fp16.settings import AgentSettings
from tests.genesis_fp16.postgres import on_each_database
from tests.genesis_fp16.runs.dispatcher.world import World, steps


def ready(*agents: str) -> list[Plugin]:
    return [
        Plugin(name=agent, entry_point="x:X", distribution="x", version="1", state="ready")
        for agent in agents
    ]


@on_each_database
def test_turns_and_what_each_run_waits_for(world: World, ticking, finished) -> None:
    world.configure(slots=1)
    storm = [world.enqueue("a") for _ in range(3)]
    other = world.enqueue("b")
    moved = world.enqueue("c")
    assert world.store.move_in_queue(moved, first=True, actor="ann", reason="now")
    waiting = read_queue(world.store, world.settings, ready("a", "b"), serving=True)
    assert [one.run.id for one in waiting] == [moved, *storm, other], "a has not had its turn yet"
    assert [one.waits_for for one in waiting] == ["plugin", "slot", "slot", "slot", "slot"]
    world.behave("a", steps=10**9)
    assert finished(moved).state == "succeeded"
    ticking(lambda: steps(world, storm[0]))
    waiting = read_queue(world.store, world.settings, ready("a", "b"), serving=True)
    assert [one.run.id for one in waiting] == [other, *storm[1:]]
    assert [one.waits_for for one in waiting] == ["slot", "agent", "agent"]
    assert waiting[0].why == "the 1 slot is taken by a#1"
    assert waiting[1].why == "a#1 is under way: one run of an agent at a time"
    unserved = read_queue(world.store, world.settings, [], serving=False)
    assert {one.waits_for for one in unserved} == {"daemon"}
    for run_id in (storm[0], *storm[1:]):
        assert world.store.request_cancel(run_id, actor="me", reason="enough")
    assert finished(other).state == "succeeded"
    assert not world.store.move_in_queue(other, first=True, actor="ann", reason="late")
    starts = [world.run(run_id).started_at for run_id in (moved, storm[0], other)]
    assert starts == sorted(starts)
    [change] = [one for one in world.store.overrides.audit(10) if one.action == "run move"]
    assert (change.actor, change.subject, change.reason) == ("ann", moved, "now")


def test_priority_and_likely_start(world: World, finished) -> None:
    world.configure(slots=1)
    finished(world.enqueue("a"))
    low, high = world.enqueue("a"), world.enqueue("b")
    world.configure(agents={"b": AgentSettings(priority=3)})
    waiting = read_queue(world.store, world.settings, ready("a", "b"), serving=True)
    assert [one.run.id for one in waiting] == [high, low]
    assert waiting[0].starts_at is not None, "a slot is free"
    assert waiting[1].starts_at is None, "no run of b tells how long they take"
    world.configure(agents={})
    first, second = read_queue(world.store, world.settings, ready("a", "b"), serving=True)
    assert (first.run.id, second.run.id) == (low, high)
    assert second.starts_at - first.starts_at == world.store.times.typical(["a"])["a"]
    finished(high)


def test_a_quota_stops_a_run_until_the_next_day(world: World, ticking, finished) -> None:
    zone = "Pacific/Kiritimati"
    world.configure(timezone=zone, agents={"a": AgentSettings(seconds_per_day=0.05)})
    world.behave("a", steps=10**9)
    limited = AgentSettings(seconds_per_day=0.05, settings={"steps": 10**9})
    world.configure(agents={"a": limited})
    run_id = world.enqueue("a")
    ticking(lambda: world.run(run_id).state is RunState.QUEUED and world.run(run_id).started_at)
    run = world.run(run_id)
    assert run.failures == 0
    [attempt] = world.store.attempts(run_id)
    assert attempt.ending == "stopped: quota"
    [waiting] = read_queue(world.store, world.settings, ready("a"), serving=True)
    assert waiting.waits_for == "quota"
    midnight = datetime.fromtimestamp(waiting.starts_at, ZoneInfo(zone))
    assert (midnight.hour, midnight.minute, midnight.second) == (0, 0, 0)
    other = world.enqueue("b")
    assert finished(other).state == "succeeded"
    assert world.run(run_id).state is RunState.QUEUED
    world.configure(agents={"a": AgentSettings(settings=limited.settings)})
    ticking(lambda: world.run(run_id).active)
    world.store.request_cancel(run_id, actor="me", reason="enough")
    finished(run_id)


def test_a_run_that_is_tried_again_says_why(world: World) -> None:
    for agent, ending in (
        ("a", Ending(exit_code=os.EX_TEMPFAIL)),
        ("b", Ending(disk_full=True)),
        ("c", Ending(exit_code=1)),
    ):
        attempt = world.store.begin_attempt(world.enqueue(agent), f"of {agent}")
        assert attempt is not None
        transition = RunTransition(state=RunState.QUEUED, delay_seconds=60.0)
        world.store.end_attempt(attempt, ending, transition, finished_at=attempt.started_at)
    waiting = read_queue(world.store, world.settings, ready("a", "b", "c"), serving=True)
    told = {one.run.agent: one.why.partition(";")[0] for one in waiting}
    assert told == {
        "a": "its last attempt: preempted",
        "b": "its last attempt: the disk was full",
        "c": "its last attempt: exit code 1",
    }


def test_a_cancel_is_final_whatever_retries_are_left(world: World, ticking, finished) -> None:
    """dagster#33923: a worker that crashes on the cancel must not be taken for a crash."""
    world.configure(max_attempts=5, retry_backoff_seconds=0.01)
    world.behave("a", steps=10**9)
    run_id = world.enqueue("a")
    ticking(lambda: steps(world, run_id))
    [attempt] = world.store.attempts(run_id)
    world.store.request_cancel(run_id, actor="me", reason="enough")
    world.dispatcher.kill_all()  # it dies before the daemon has told it to stop
    run = finished(run_id)
    assert run.state is RunState.CANCELLED
    assert len(world.store.attempts(run_id)) == 1
    for _ in range(5):
        world.tick()
    assert world.run(run_id).state is RunState.CANCELLED
    assert attempt.number == 1
