"""Due times in a time zone, also where clocks repeat or skip an hour."""

import itertools
import subprocess
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from genesis_fp16.domain.schedule import local_due, missed, next_due
from infrastructure.agent_contract import Schedule
from tests.genesis_fp16.domain.local_times import differences

NEW_YORK = ZoneInfo("America/New_York")
OCTOBER = datetime(2026, 10, 31, 12, tzinfo=UTC).timestamp()
MARCH = datetime(2026, 3, 7, 12, tzinfo=UTC).timestamp()
DAY = 86400.0


def due_in_two_days(begin: float, cron: str, **policies: str) -> list[str]:
    schedule = Schedule(cron=cron, timezone="America/New_York", **policies)
    fires = missed(schedule, begin, begin + 2 * DAY, "all")
    return [f"{datetime.fromtimestamp(fire, NEW_YORK):%d %H:%M %Z}" for fire in fires]


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({}, ["01 01:30 EDT", "02 01:30 EST"]),  # agent-os#2472 fired twice
        ({"repeated_hour": "first"}, ["01 01:30 EDT", "02 01:30 EST"]),
        ({"repeated_hour": "second"}, ["01 01:30 EST", "02 01:30 EST"]),
        ({"repeated_hour": "both"}, ["01 01:30 EDT", "01 01:30 EST", "02 01:30 EST"]),
    ],
)
def test_the_hour_that_occurs_twice(policies, expected) -> None:
    assert due_in_two_days(OCTOBER, "30 1 * * *", **policies) == expected


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({}, ["08 03:30 EDT", "09 02:30 EDT"]),  # agent-os#2472 never fired
        ({"missing_hour": "shift"}, ["08 03:30 EDT", "09 02:30 EDT"]),
        ({"missing_hour": "skip"}, ["09 02:30 EDT"]),
    ],
)
def test_the_hour_that_never_occurs(policies, expected) -> None:
    assert due_in_two_days(MARCH, "30 2 * * *", **policies) == expected


def test_a_schedule_of_every_hour_goes_on_in_both_and_waits_for_none() -> None:
    autumn = missed(
        Schedule.parse("cron 30 * * * * Europe/Helsinki"),
        OCTOBER - 7 * DAY,
        OCTOBER - 5 * DAY,
        "all",
    )
    spring = missed(
        Schedule.parse("cron 30 * * * * Europe/Helsinki"), MARCH + 21 * DAY, MARCH + 23 * DAY, "all"
    )
    for fires in (autumn, spring):
        assert [b - a for a, b in itertools.pairwise(fires)] == [3600.0] * 47


def test_no_moment_is_due_for_ever() -> None:  # apscheduler#1021
    at = datetime(2017, 10, 29, 3, 45, fold=1, tzinfo=ZoneInfo("Europe/Helsinki")).timestamp()
    for _ in range(50):
        following = next_due(Schedule.parse("cron 30 * * * * Europe/Helsinki"), at)
        assert following is not None
        assert 0 < following - at <= 3600
        at = following


def test_random_times_in_all_zones() -> None:
    assert list(differences(4_000, seed=1)) == []


def test_years_of_due_times_are_not_computed_and_a_rare_one_is_found() -> None:
    every_minute = Schedule.parse("cron * * * * * America/New_York")
    year_2200 = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
    fires = missed(every_minute, OCTOBER, year_2200, "all")
    assert fires == [year_2200 - 60.0 * back for back in reversed(range(100))]
    leap_day = Schedule.parse("cron 0 0 29 2 * America/New_York")  # 1900 and 2100 have none
    year_2103 = datetime(2103, 1, 1, tzinfo=UTC).timestamp()
    (latest,) = missed(leap_day, OCTOBER, year_2103, "latest")
    assert datetime.fromtimestamp(latest, NEW_YORK).isoformat() == "2096-02-29T00:00:00-05:00"
    assert missed(every_minute, year_2200, OCTOBER, "all") == []  # the clock was set back


def test_due_times_are_shown_in_both() -> None:
    schedule = Schedule.parse("cron 30 1 * * * Europe/Helsinki")
    due = next_due(schedule, OCTOBER)
    assert local_due(schedule, due) == "2026-11-01 01:30 EET (+02:00)"
    kolkata = Schedule.parse("cron 30 1 * * * Asia/Kolkata")
    assert local_due(kolkata, next_due(kolkata, OCTOBER)) == "2026-11-01 01:30 IST (+05:30)"
    assert local_due(Schedule.parse("cron 30 1 * * *"), due) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cron 30 1 * * * Europe/Helsinky", "did you mean Europe/Helsinki"),
        ("cron 30 1 * * * europe/helsinki", "did you mean Europe/Helsinki"),
        ("cron 30 1 * * * ../../etc/passwd", "not a time zone"),
        ("cron 30 1 * * * right/UTC", "not a time zone"),
        ("every 6h Europe/Helsinki", "write a schedule as"),
    ],
)
def test_an_unknown_zone_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule.parse(text)


def test_an_interval_has_no_zone() -> None:
    with pytest.raises(ValueError, match="only a cron expression has a time zone"):
        Schedule(every_seconds=60, timezone="Europe/Helsinki")


@pytest.mark.process
def test_a_machine_without_time_zone_data_says_so() -> None:
    program = (
        "import sys; sys.modules['tzdata'] = None\n"
        "from infrastructure.agent_contract import Schedule\n"
        "Schedule.parse('cron 0 3 * * * UTC')\n"
        "try: Schedule.parse('cron 0 3 * * * Europe/Helsinki')\n"
        "except ValueError as error: print(error)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "pip install tzdata" in answer.stdout
