from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract import Schedule


@pytest.mark.parametrize(
    ("text", "seconds"), [("every 30m", 1800.0), ("every 6h", 21600.0), (" Every 1.5 s ", 1.5)]
)
def test_intervals(text, seconds):
    assert Schedule.parse(text).every_seconds == seconds


@given(st.integers(1, 1000), st.sampled_from("smhd"))
def test_what_is_printed_can_be_read(number, unit):
    try:
        schedule = Schedule.parse(f"every {number}{unit}")
    except ValueError:
        assert unit == "d"
        assert number > 366
    else:
        assert Schedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("every 500 outcomes", "every 500 outcomes, at most every 1m"),
        ("Every 500 outcomes, at most hourly", "every 500 outcomes, at most every 1h"),
        ("every 1 outcome at most every 90m", "every 1 outcomes, at most every 90m"),
    ],
)
def test_outcomes(text, shown):
    schedule = Schedule.parse(text)
    assert str(schedule) == shown
    assert Schedule.parse(shown) == schedule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hourly", "every 30m"),
        ("every 0s", "1 second"),
        ("cron 0 3 * *", "five fields"),
        ("cron 0 3 * * 1", "mon, not 1"),
        ("", "every 30m"),
        ("every 0 outcomes", "between 1 and"),
        ("every 500 outcomes, at most weekly", "at most every 1h"),
    ],
)
def test_a_wrong_schedule_shows_the_remedy(text, words):
    with pytest.raises(ValueError, match=words):
        Schedule.parse(text)


@given(st.text())
def test_no_text_breaks_the_parser(text):
    try:
        Schedule.parse(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017


def test_interval_or_cron_not_both():
    with pytest.raises(ValueError, match="exactly one"):
        Schedule(every_seconds=5.0, cron="0 3 * * mon")
    with pytest.raises(ValueError, match="exactly one"):
        Schedule()
