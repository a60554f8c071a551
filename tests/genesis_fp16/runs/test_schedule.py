"""The timetable: runs that are due, caught up on, or overlap."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.domain.schedule import MAX_CATCH_UP_RUNS, DueTime
from genesis_fp16.runs.schedule import MAX_AGENTS, MAX_RUNS, Timetable
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.agent_contract import Schedule
from tests.genesis_fp16.postgres import on_each_database
from tests.preloaded import ForkedPopen

HOURLY = Schedule(every_seconds=3600)
NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0


@pytest.fixture
def timetable(store: Store) -> Callable[[], Timetable]:
    return lambda: Timetable(store, first_seed=7)


def begin(table: Timetable, agent: str, schedule: Schedule, now: float) -> None:
    """Add the agent, and let a round record what it missed."""
    table.add(agent, schedule)
    table.tick(now)


def due_times(store: Store) -> list[float]:
    return [run.due_at for run in store.unfinished("a")]


def finish_all(store: Store) -> None:
    for run in store.unfinished("a"):
        store.move(run.id, RunState.CANCELLED)


@on_each_database
def test_an_agent_that_never_ran_is_due_at_once_and_then_on_the_hour(store, timetable) -> None:
    table = timetable()
    begin(table, "a", HOURLY, NOON + 100)
    assert due_times(store) == [NOON + 100]
    finish_all(store)
    assert table.next_runs == {"a": NOON + HOUR}
    table.tick(NOON + HOUR - 1)
    assert due_times(store) == []
    table.tick(NOON + HOUR + 0.2)
    assert due_times(store) == [NOON + HOUR]
    assert table.lags["a"] == pytest.approx(0.2)
    assert table.periods["a"] == HOUR


def test_outcomes_make_an_agent_due_at_most_as_often_as_it_says(store, timetable) -> None:
    by_data, waiting = Schedule.parse("every 500 outcomes, at most hourly"), [499]

    def begun(now: float) -> Timetable:
        table = timetable()
        table.count_outcomes = lambda _agent: waiting[0]
        begin(table, "a", by_data, now)
        return table

    table = begun(NOON)
    assert (due_times(store), table.next_runs) == ([], {"a": None}), "not at once: data decide"
    waiting[0] = 500
    table.tick(NOON + 5)
    assert due_times(store) == [NOON + 5]
    assert math.isnan(table.periods["a"])
    table.tick(NOON + 2 * HOUR)
    assert due_times(store) == [NOON + 5], "its run has not taken them in yet"
    finish_all(store)
    waiting[0] = 700
    again = begun(NOON + HOUR)
    again.tick(NOON + HOUR)
    assert due_times(store) == [], "not within an hour, nor after a restart"
    again.tick(NOON + HOUR + 5)
    assert due_times(store) == [NOON + HOUR + 5]
    finish_all(store)
    again.tick(NOON)  # the clock was set back
    assert due_times(store) == [NOON]
    finish_all(store)
    again.change("a", HOURLY)
    again.tick(NOON + 10)
    again.tick(NOON + HOUR + 10)
    assert due_times(store) == [NOON + HOUR]


@on_each_database
def test_a_changed_schedule_makes_no_run_of_the_past_due(store, timetable) -> None:
    table = timetable()
    begin(table, "a", replace(HOURLY, catch_up="all"), NOON)
    finish_all(store)
    table.change("a", Schedule(every_seconds=60, catch_up="all", overlap="queue"))
    assert table.has_work(NOON + 600)
    table.tick(NOON + 600)
    assert due_times(store) == []
    assert table.next_runs == {"a": NOON + 660}
    assert not table.has_work(NOON + 600)
    table.tick(NOON + 660)
    table.tick(NOON + 720)
    assert due_times(store) == [NOON + 660, NOON + 720], "the overlap has changed, too"

    begin(again := timetable(), "a", Schedule(every_seconds=60), NOON + 730)
    assert due_times(store) == [NOON + 660, NOON + 720], "nor after a restart"
    assert again.next_runs == {"a": NOON + 780}


def test_what_is_due_when_a_schedule_changes_is_not_lost(store, timetable) -> None:
    table = timetable()
    begin(table, "a", HOURLY, NOON - 100)
    finish_all(store)
    table.change("a", Schedule(cron="0 3 * * *"))
    table.tick(NOON + 1)
    assert due_times(store) == [NOON]
    assert table.next_runs == {"a": NOON + 15 * HOUR}


def test_a_change_before_the_first_round_is_the_schedule(store, timetable) -> None:
    table = timetable()
    table.add("a", HOURLY)
    table.change("a", Schedule(every_seconds=60, catch_up="none"))
    table.tick(NOON)
    assert due_times(store) == []
    assert table.next_runs == {"a": NOON + 60}
    table.change("a", Schedule(every_seconds=60, catch_up="none"))
    assert not table.has_work(NOON), "nothing has changed"
    with pytest.raises(ValueError, match="maximum value"):
        table.change("a", Schedule(cron="99 * * * *"))
    table.change("a", HOURLY)
    table.remove("a")
    table.tick(NOON + HOUR)
    assert due_times(store) == []


def test_a_change_of_an_agent_that_is_added_again_is_outdated(store, timetable) -> None:
    table = timetable()
    begin(table, "a", HOURLY, NOON)
    table.change("a", replace(HOURLY, overlap="queue"))
    table.add("a", Schedule(every_seconds=60, overlap="queue"))  # a new version of the agent
    table.tick(NOON)
    assert table.next_runs == {"a": NOON + 60}


def test_the_period_is_the_longest_gap(timetable) -> None:
    table = timetable()
    begin(table, "a", Schedule(cron="0 3 * * mon-fri"), NOON)
    assert table.periods["a"] == 72 * HOUR, "from Friday to Monday"


@pytest.mark.process
def test_the_period_of_a_schedule_without_two_fires_is_unknown(timetable) -> None:
    table = timetable()
    begin(table, "a", Schedule(cron="0 3 30 2 *"), NOON)
    assert math.isnan(table.periods["a"])


def test_with_catch_up_none_it_waits_for_its_hour(store, timetable) -> None:
    schedule = Schedule(every_seconds=HOUR, catch_up="none")
    begin(timetable(), "a", schedule, NOON + 100)
    table = timetable()
    begin(table, "a", schedule, NOON + 5 * HOUR + 100)
    assert due_times(store) == []
    table.tick(NOON + 6 * HOUR)
    assert due_times(store) == [NOON + 6 * HOUR]


@pytest.mark.parametrize(("catch_up", "count"), [("latest", 1), ("all", 3)])
@on_each_database
def test_a_restart_catches_up_once(store, timetable, catch_up, count: int) -> None:
    schedule = Schedule(every_seconds=HOUR, catch_up=catch_up)
    begin(timetable(), "a", schedule, NOON)
    finish_all(store)
    for _ in range(2):  # the second restart finds nothing missed
        begin(timetable(), "a", schedule, NOON + 3.5 * HOUR)
        assert due_times(store) == [NOON + h * HOUR for h in (1, 2, 3)][-count:]
    assert [run.seed for run in store.unfinished("a")] == [8, 9, 10][:count]


def test_a_long_sleep_of_the_machine_is_one_run(store, timetable) -> None:
    table = timetable()
    begin(table, "a", HOURLY, NOON)
    finish_all(store)
    table.tick(NOON + 5.5 * HOUR)
    assert due_times(store) == [NOON + 5 * HOUR]


@on_each_database
def test_a_clock_set_back_delays_no_agent(store, timetable) -> None:
    table = timetable()
    begin(table, "a", HOURLY, NOON)
    finish_all(store)
    table.tick(NOON - 99 * HOUR)
    assert table.next_runs["a"] == NOON - 98 * HOUR
    table.tick(NOON - 98 * HOUR)
    assert due_times(store) == [NOON - 98 * HOUR]
    finish_all(store)
    begin(timetable(), "a", HOURLY, NOON - 200 * HOUR)  # and over a restart
    assert store.last_due("a") == {"a": NOON - 200 * HOUR}


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", [(NOON, False)]),
        ("queue", [(NOON, False), (NOON + HOUR, False)]),
        ("replace", [(NOON, True), (NOON + HOUR, False)]),
    ],
)
@on_each_database
def test_overlap(store, timetable, overlap, expected) -> None:
    table = timetable()
    begin(table, "a", Schedule(every_seconds=HOUR, overlap=overlap), NOON)
    table.tick(NOON + HOUR)

    def seen(run: Run) -> tuple[float, bool]:
        return run.due_at, run.cancel_requested

    assert [seen(run) for run in store.unfinished("a")] == expected
    assert table.next_runs["a"] == NOON + 2 * HOUR


@pytest.mark.process
def test_a_queue_is_bounded(store, timetable) -> None:
    table = timetable()
    begin(table, "a", Schedule(every_seconds=1, overlap="queue"), NOON)
    for second in range(1, MAX_CATCH_UP_RUNS + 5):
        table.tick(NOON + second)
    assert len(store.unfinished("a")) == MAX_CATCH_UP_RUNS


def test_a_malformed_cron_expression_records_nothing(store, timetable) -> None:
    with pytest.raises(ValueError, match="99"):
        begin(timetable(), "a", Schedule(cron="99 * * * *"), NOON)
    assert store.last_due("a") == {}


def rounds(table: Timetable, store: Store, now: float) -> list[int]:
    """Runs that each round recorded, until the timetable has no work left."""
    recorded = [len(store.unfinished())]
    while table.has_work(now):
        table.tick(now)
        recorded.append(len(store.unfinished()))
    return [after - before for before, after in pairwise(recorded)]


@on_each_database
def test_a_round_records_some_of_those_due_together(store, timetable) -> None:
    """1,000 were one round of 22 seconds, in which the flag waited."""
    table = timetable()
    agents = [f"agent-{number:04}" for number in range(4 * MAX_AGENTS + 1)]
    for agent in agents:
        table.add(agent, HOURLY)
    assert max(rounds(table, store, NOON)) == MAX_AGENTS
    assert Counter(run.agent for run in store.unfinished()) == Counter(agents)
    for run in store.unfinished():
        store.move(run.id, RunState.CANCELLED)
    assert table.next_runs.keys() == table.changed == set(agents)
    assert not table.has_work(NOON + HOUR - 1)
    assert max(rounds(table, store, NOON + HOUR)) == MAX_AGENTS
    assert Counter(run.agent for run in store.unfinished()) == Counter(agents)
    assert rounds(table, store, NOON + HOUR) == []


def test_a_round_bounds_the_runs_caught_up_on(store, timetable) -> None:
    missed = 30  # missed runs of an agent
    agents = [f"agent-{number}" for number in range(10)]
    for agent in agents:
        store.record_due({DueTime(agent=agent, last_due=NOON): []}, first_seed=0)
    table = timetable()
    for agent in agents:
        table.add(agent, Schedule(every_seconds=HOUR, catch_up="all"))
    assert max(rounds(table, store, NOON + missed * HOUR)) < MAX_RUNS + missed
    counted = Counter(run.agent for run in store.unfinished())
    assert counted == dict.fromkeys(agents, missed)


def test_the_longest_due_is_recorded_first(store, timetable) -> None:
    agents = [f"agent-{number:03}" for number in range(MAX_AGENTS + 10)]
    last_due = {agent: NOON - HOUR * (place % 7) for place, agent in enumerate(agents)}
    for agent, last in last_due.items():
        store.record_due({DueTime(agent=agent, last_due=last): []}, first_seed=0)
    table = timetable()
    for agent in agents:
        table.add(agent, HOURLY)
    now = NOON + HOUR
    while table.has_work(now) and not store.unfinished():
        table.tick(now)
    recorded = {run.agent for run in store.unfinished()}
    assert len(recorded) == MAX_AGENTS
    longest = max(last_due[agent] for agent in recorded)
    assert longest <= min(last_due[agent] for agent in set(agents) - recorded)


def test_a_failing_store_loses_no_due_time(store, timetable, monkeypatch) -> None:
    table = timetable()
    begin(table, "a", HOURLY, NOON)
    finish_all(store)
    with monkeypatch.context() as patch:
        patch.delattr(Store, "record_due")
        with pytest.raises(AttributeError):
            table.tick(NOON + HOUR)
    assert table.has_work(NOON + HOUR)
    table.tick(NOON + HOUR)
    assert due_times(store) == [NOON + HOUR]


_RECORD = """
import sys
from pathlib import Path

from genesis_fp16.runs.schedule import Timetable
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.agent_contract import Schedule

store = Store.open(Settings(home=Path(sys.argv[1])))
table = Timetable(store, first_seed=0)
for number in range(int(sys.argv[2])):
    table.add(f"agent-{number:04}", Schedule(every_seconds=3600))
now = float(sys.argv[3])
while table.has_work(now):
    table.tick(now)
    print("recorded", len(store.unfinished()), flush=True)
"""


@pytest.mark.process
def test_sigkill_between_rounds_neither_loses_nor_doubles_a_run(tmp_path) -> None:
    count = 6 * MAX_AGENTS
    command = [sys.executable, "-P", "-c", _RECORD, str(tmp_path), str(count), str(NOON)]
    with ForkedPopen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("recorded") and line.split()[1] != "0":
                process.kill()
                break
    store = Store.open(Settings(home=tmp_path))
    try:
        assert store.unfinished()
        table = Timetable(store, first_seed=0)
        agents = [f"agent-{number:04}" for number in range(count)]
        for agent in agents:
            table.add(agent, HOURLY)
        rounds(table, store, NOON + 1)
        assert Counter(run.agent for run in store.unfinished()) == Counter(agents)
    finally:
        store.close()


@pytest.mark.parametrize(
    ("catch_up", "overlap", "expected"),
    [
        ("none", "skip", []),
        ("latest", "skip", [NOON + 3 * HOUR]),
        ("all", "skip", [NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR]),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
@on_each_database
def test_what_is_due_while_an_agent_is_paused_is_caught_up_on_when_it_is_resumed(
    store, timetable, catch_up: str, overlap: str, expected: list[float], restarted: bool
) -> None:
    paused = {"a"}
    schedule = replace(HOURLY, catch_up=catch_up, overlap=overlap)
    table = timetable()
    begin(table, "a", schedule, NOON)
    finish_all(store)
    table.is_paused = paused.__contains__
    table.tick(NOON + HOUR)
    table.tick(NOON + 2 * HOUR)
    if restarted:
        table = timetable()
        table.is_paused = paused.__contains__
        begin(table, "a", schedule, NOON + 3 * HOUR)
    assert due_times(store) == []
    assert not table.has_work(NOON + 3 * HOUR), "it waits without keeping the loop busy"
    paused.clear()
    table.tick(NOON + 3.5 * HOUR)
    assert due_times(store) == expected
    assert table.next_runs == {"a": NOON + 4 * HOUR}
    assert "a" not in table.lags, "a pause is no delay of the daemon"
    finish_all(store)
    table.tick(NOON + 4 * HOUR)
    assert due_times(store) == [NOON + 4 * HOUR], "the schedule goes on"


def test_a_schedule_that_changes_during_a_pause_loses_nothing_that_was_due(
    store, timetable
) -> None:
    table = timetable()
    begin(table, "a", HOURLY, NOON)
    finish_all(store)
    table.is_paused = lambda _agent: True
    table.tick(NOON + HOUR)
    table.change("a", Schedule(every_seconds=60))
    table.tick(NOON + HOUR + 1)
    table.is_paused = lambda _agent: False
    table.tick(NOON + HOUR + 30)
    assert due_times(store) == [NOON + HOUR]
    assert table.next_runs == {"a": NOON + HOUR + 60}
