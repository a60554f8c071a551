"""Times as text."""

import math

import pytest

from genesis_fp16.domain.moments import duration, moment


@pytest.mark.parametrize("timestamp", [1e18, -1e18, 9e15, math.nan, math.inf, -math.inf])
def test_a_time_beyond_the_calendar_is_unreadable(timestamp: float) -> None:
    assert moment(timestamp) == "unreadable time"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (12.34, "12.3s"), (150.0, "2m"), (7200.0, "2.0h")],
)
def test_a_duration_has_the_unit_that_suits_it(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
