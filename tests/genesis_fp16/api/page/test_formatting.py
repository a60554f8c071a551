"""Numbers and times of the page, at their edges."""

import math

import pytest

from genesis_fp16.api.page.formatting import clock, count, iso, number, power, relative, size, tone
from genesis_fp16.domain.run import RunState


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (1000.0, "now"),
        (999.0, "1 second ago"),
        (1090.0, "in 1 minute"),
        (1000.0 - 7200, "2 hours ago"),
        (1000.0 + 3 * 86400, "in 3 days"),
        (math.nan, "unreadable time"),
        (1e300, "unreadable time"),
    ],
)
def test_relative(at: float, text: str) -> None:
    assert relative(at, 1000.0) == text


def test_moments() -> None:
    assert clock(0.0) == "1970-01-01 00:00:00"
    assert iso(0.0) == "1970-01-01T00:00:00Z"
    assert (clock(None), clock(math.inf), iso(math.inf)) == ("", "unreadable time", "")


@pytest.mark.parametrize(
    ("scale", "text"),
    [(65536.0, "2^16"), (2.0**-16, "2^-16"), (1000.0, "1000"), (0.0, "not finite")],
)
def test_power(scale: float, text: str) -> None:
    assert power(scale) == text


def test_numbers() -> None:
    assert number(0.0123456) == "0.01235"
    assert number(math.nan) == number(None) == "not finite"
    assert number("Infinity") == "Infinity"
    assert count(1234567) == "1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567"
    assert (size(10), size(1536), size(5 << 30)) == ("10 bytes", "1.5 KiB", "5.0 GiB")


def test_every_state_of_a_run_has_a_symbol() -> None:
    assert {state for state in RunState if tone(state) == "off"} == {RunState.CANCELLED}
