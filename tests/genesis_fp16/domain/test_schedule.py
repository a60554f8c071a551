"""Due times: anchored, in UTC, and caught up on."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.domain.schedule import MAX_CATCH_UP_RUNS, missed, next_due
from infrastructure.agent_contract import Schedule

HOURLY = Schedule(every_seconds=3600)
NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0

schedules = st.one_of(
    st.floats(1.0, 90 * 86400.0).map(lambda seconds: Schedule(every_seconds=seconds)),
    st.sampled_from(["* * * * *", "0 3 * * mon", "*/7 1-5 1 * *", "30 2 29 2 *"]).map(
        lambda text: Schedule(cron=text)
    ),
)
moments = st.floats(1.6e9, 2.5e9)


@given(schedules, moments)
def test_due_times_go_forward(schedule: Schedule, after: float) -> None:
    first = next_due(schedule, after)
    assert first is not None
    second = next_due(schedule, first)
    assert second is not None
    assert after < first < second


@given(st.integers(1_000, 90 * 86_400_000), moments, moments)
def test_a_restart_does_not_shift_an_interval(
    milliseconds: int, start: float, restart: float
) -> None:
    every = milliseconds / 1000  # a clock knows microseconds, a float knows more
    schedule = Schedule(every_seconds=every)
    first, second = next_due(schedule, start), next_due(schedule, restart)
    assert first is not None
    assert second is not None
    beats = (first - second) / every
    assert abs(beats - round(beats)) * every < 1e-3


def test_weekdays_and_hours_are_in_utc() -> None:
    due = next_due(Schedule(cron="30 2 * * mon"), NOON)
    assert due is not None
    moment = datetime.fromtimestamp(due, UTC)
    assert (moment.strftime("%a"), moment.hour, moment.minute) == ("Mon", 2, 30)


def test_summer_time_starts_no_run_twice() -> None:
    october = datetime(2026, 10, 24, tzinfo=UTC).timestamp()
    fires = missed(Schedule(cron="30 2 * * *"), october, october + 4 * 86400, "all")
    assert len(fires) == 4
    assert {b - a for a, b in pairwise(fires)} == {86400.0}


def test_a_day_that_never_comes() -> None:
    assert next_due(Schedule(cron="0 0 30 2 *"), NOON) is None


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("none", []), ("latest", [NOON]), ("all", [NOON - 2 * HOUR, NOON - HOUR, NOON])],
)
def test_missed(catch_up, expected: list[float]) -> None:
    assert missed(HOURLY, NOON - 2.5 * HOUR, NOON, catch_up) == expected


def test_years_of_due_times_are_not_computed() -> None:
    fires = missed(Schedule(every_seconds=1), NOON - 5 * 366 * 86400, NOON, "all")
    assert fires == [NOON - back for back in reversed(range(MAX_CATCH_UP_RUNS))]
