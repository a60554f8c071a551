"""The order of the queue, and when its runs are likely to start."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.domain.queue import forecast, in_turn
from genesis_fp16.domain.run import Run, RunState

NOW = 1000.0


def run(name: str, *, due_at: float = 0.0, position: int = 0) -> Run:
    return Run(
        id=name,
        agent=name[0],
        number=1,
        trigger="schedule",
        state=RunState.QUEUED,
        seed=0,
        due_at=due_at,
        created_at=due_at,
        available_at=due_at,
        position=position,
    )


def order(runs: list[Run], priority=None, started=None) -> list[str]:
    return [one.id for one in in_turn(runs, lambda a: (priority or {}).get(a, 0), started or {})]


def test_the_longest_due_goes_first_then_priority_then_what_an_operator_moved() -> None:
    runs = [run("a1", due_at=3), run("b1", due_at=1), run("c1", due_at=2)]
    assert order(runs) == ["b1", "c1", "a1"]
    assert order(runs, {"a": 5, "b": -1}) == ["a1", "c1", "b1"]
    assert order([*runs, run("d1", position=-1, due_at=9)], {"a": 5}) == ["d1", "a1", "b1", "c1"]


def test_an_agent_whose_run_has_just_begun_waits_behind_those_that_waited_meanwhile() -> None:
    runs = [run("a2", due_at=0), run("b1", due_at=50)]
    assert order(runs, started={"a": 60.0}) == ["b1", "a2"]
    assert order(runs, started={"a": 40.0}) == ["a2", "b1"]
    resumed = replace(runs[0], started_at=60.0)
    assert order([resumed, runs[1]], started={"a": 60.0}) == ["a2", "b1"]


@given(st.lists(st.sampled_from("aaaaabcd"), max_size=40))
def test_a_storm_of_one_agent_delays_each_other_agent_by_one_run_at_most(agents) -> None:
    waiting = [run(f"{agent}{n}", due_at=n) for n, agent in enumerate(agents)]
    started: dict[str, float] = {}
    served = []
    while waiting:
        first = in_turn(waiting, lambda _agent: 0, started)[0]
        waiting.remove(first)
        started[first.agent] = NOW + len(served)
        served.append(first.agent)
    kinds = len(set(agents))
    firsts = {agent: served.index(agent) for agent in set(agents)}
    assert all(place < kinds for place in firsts.values())


def test_a_forecast_follows_slots_agents_and_waits() -> None:
    runs = [run("a2"), run("b1"), run("c1"), run("c2"), run("d1")]
    ready = {one.id: 0.0 for one in runs} | {"c1": NOW + 500}
    typical = {"a": 10.0, "b": 100.0, "c": 20.0, "d": 5.0}
    starts = forecast(runs, ready, {"a": NOW + 30}, typical, 1, NOW)
    # One slot is free for b until 1100, the other is a's until 1030.
    assert starts == {
        "b1": NOW,
        "a2": NOW + 30,
        "c2": NOW + 40,
        "d1": NOW + 60,
        "c1": NOW + 500,
    }


def test_what_is_not_known_is_not_forecast() -> None:
    runs = [run("a1"), run("b1"), run("c1")]
    ready = {"a1": 0.0, "c1": 0.0}  # b waits for a person
    assert forecast(runs, ready, {}, {}, 1, NOW) == {"a1": NOW}
    assert forecast(runs, ready, {"x": float("inf")}, {}, 0, NOW) == {}
    assert forecast([replace(runs[0], id="a0")], {}, {}, {}, 3, NOW) == {}
