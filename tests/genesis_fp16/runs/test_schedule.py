"""The timetable: runs that are due, caught up on, or overlap."""

import math
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.domain.schedule import MAX_CATCH_UP_RUNS
from genesis_fp16.runs.schedule import Timetable
from genesis_fp16.store import Store
from infrastructure.agent_contract import Schedule

HOURLY = Schedule(every_seconds=3600)
NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0


@pytest.fixture
def timetable(store: Store) -> Callable[[], Timetable]:
    return lambda: Timetable(store, first_seed=7)


def due_times(store: Store) -> list[float]:
    return [run.due_at for run in store.unfinished("a")]


def finish_all(store: Store) -> None:
    for run in store.unfinished("a"):
        store.move(run.id, RunState.CANCELLED)


def test_an_agent_that_never_ran_is_due_at_once_and_then_on_the_hour(store, timetable) -> None:
    table = timetable()
    table.add("a", HOURLY, NOON + 100)
    assert due_times(store) == [NOON + 100]
    finish_all(store)
    assert table.next_runs == {"a": NOON + HOUR}
    table.tick(NOON + HOUR - 1)
    assert due_times(store) == []
    table.tick(NOON + HOUR + 0.2)
    assert due_times(store) == [NOON + HOUR]
    assert table.lags["a"] == pytest.approx(0.2)
    assert table.periods["a"] == HOUR


def test_the_period_is_the_longest_gap(timetable) -> None:
    table = timetable()
    table.add("a", Schedule(cron="0 3 * * mon-fri"), NOON)
    assert table.periods["a"] == 72 * HOUR, "from Friday to Monday"


def test_the_period_of_a_schedule_without_two_fires_is_unknown(timetable) -> None:
    table = timetable()
    table.add("a", Schedule(cron="0 3 30 2 *"), NOON)
    assert math.isnan(table.periods["a"])


def test_with_catch_up_none_it_waits_for_its_hour(store, timetable) -> None:
    schedule = Schedule(every_seconds=HOUR, catch_up="none")
    timetable().add("a", schedule, NOON + 100)
    table = timetable()
    table.add("a", schedule, NOON + 5 * HOUR + 100)
    assert due_times(store) == []
    table.tick(NOON + 6 * HOUR)
    assert due_times(store) == [NOON + 6 * HOUR]


@pytest.mark.parametrize(("catch_up", "count"), [("latest", 1), ("all", 3)])
def test_a_restart_catches_up_once(store, timetable, catch_up, count: int) -> None:
    schedule = Schedule(every_seconds=HOUR, catch_up=catch_up)
    timetable().add("a", schedule, NOON)
    finish_all(store)
    for _ in range(2):  # the second restart finds nothing missed
        timetable().add("a", schedule, NOON + 3.5 * HOUR)
        assert due_times(store) == [NOON + h * HOUR for h in (1, 2, 3)][-count:]
    assert [run.seed for run in store.unfinished("a")] == [8, 9, 10][:count]


def test_a_long_sleep_of_the_machine_is_one_run(store, timetable) -> None:
    table = timetable()
    table.add("a", HOURLY, NOON)
    finish_all(store)
    table.tick(NOON + 5.5 * HOUR)
    assert due_times(store) == [NOON + 5 * HOUR]


def test_a_clock_set_back_delays_no_agent(store, timetable) -> None:
    table = timetable()
    table.add("a", HOURLY, NOON)
    finish_all(store)
    table.tick(NOON - 99 * HOUR)
    assert table.next_runs["a"] == NOON - 98 * HOUR
    table.tick(NOON - 98 * HOUR)
    assert due_times(store) == [NOON - 98 * HOUR]
    finish_all(store)
    timetable().add("a", HOURLY, NOON - 200 * HOUR)  # and over a restart
    assert store.last_due("a") == NOON - 200 * HOUR


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", [(NOON, False)]),
        ("queue", [(NOON, False), (NOON + HOUR, False)]),
        ("replace", [(NOON, True), (NOON + HOUR, False)]),
    ],
)
def test_overlap(store, timetable, overlap, expected) -> None:
    table = timetable()
    table.add("a", Schedule(every_seconds=HOUR, overlap=overlap), NOON)
    table.tick(NOON + HOUR)

    def seen(run: Run) -> tuple[float, bool]:
        return run.due_at, run.cancel_requested

    assert [seen(run) for run in store.unfinished("a")] == expected
    assert table.next_runs["a"] == NOON + 2 * HOUR


def test_a_queue_is_bounded(store, timetable) -> None:
    table = timetable()
    table.add("a", Schedule(every_seconds=1, overlap="queue"), NOON)
    for second in range(1, MAX_CATCH_UP_RUNS + 5):
        table.tick(NOON + second)
    assert len(store.unfinished("a")) == MAX_CATCH_UP_RUNS


def test_a_malformed_cron_expression_records_nothing(store, timetable) -> None:
    with pytest.raises(ValueError, match="99"):
        timetable().add("a", Schedule(cron="99 * * * *"), NOON)
    assert store.last_due("a") is None
