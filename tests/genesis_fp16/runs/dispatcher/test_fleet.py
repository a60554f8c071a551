"""Fleets: runs that share a worker, and what becomes of each."""

import os
import signal
from collections.abc import Callable

import pytest

from genesis_fp16.domain.run import RunState
from tests.genesis_fp16.runs.dispatcher.world import FP32, World, steps


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
