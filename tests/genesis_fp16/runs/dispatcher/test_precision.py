"""Precision of a run: decided once it has begun, followed, and sent again."""

from genesis_fp16.runs.attempt_progress import LONGEST_BACKLOG
from tests.genesis_fp16.postgres import on_each_database
from tests.genesis_fp16.runs.dispatcher.world import FP16, FP32, World, steps


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


def test_precision_is_sent_again_when_its_acknowledgement_may_be_lost(
    world: World, ticking
) -> None:
    """A worker that writes faster than the daemon reads loses events."""
    world.behave("a", steps=10**9, flood=2 * LONGEST_BACKLOG // 1000)
    run_id = world.enqueue()
    ticking(lambda: len(world.events(run_id, "precision_changed")) == 2)
    assert [event.state for event in world.events(run_id, "precision_changed")] == [FP16] * 2
