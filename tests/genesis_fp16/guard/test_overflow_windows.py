"""Storms, sustained overflows, the floor; and the search for a scale, which is none of them."""

import pytest

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.guard.overflow_windows import OverflowWindows, Scaling

SETTINGS = GuardSettings()
SCALE_FLOOR = 2.0**-16
HALVING = Scaling(backoff_factor=0.5, floor=SCALE_FLOOR)


@pytest.fixture
def windows() -> OverflowWindows:
    return OverflowWindows()


def add(windows: OverflowWindows, event, strict: bool = False) -> str | None:
    found = windows.add(event, SETTINGS, strict=strict)
    return found.trigger if found else None


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [(0, None), (30, None), (31, "overflow_storm"), (100, "overflow_storm")],
)
def test_a_storm_is_more_than_the_limit_in_one_window(windows, stats, overflow, expected) -> None:
    assert add(windows, stats(overflow=overflow)) == expected


def test_no_window_is_judged_before_it_is_full(windows, stats) -> None:
    for _ in range(9):
        assert add(windows, stats(steps=11, overflow=5)) is None
    found = windows.add(stats(steps=1, overflow=0), SETTINGS, strict=False)
    assert found is not None
    assert found.said == "45 of 100 steps overflowed (45%; the limit is 30%)"
    assert found.numbers["ratios"] == [0.45]


def test_many_overflows_must_last(windows, stats) -> None:
    found = [add(windows, stats(overflow=15)) for _ in range(5)]
    assert found == [None] * 4 + ["overflow_sustained"]


def test_one_good_window_ends_the_row(windows, stats) -> None:
    ratios = [15, 15, 15, 15, 9, 15, 15, 15, 15]
    assert [add(windows, stats(overflow=each)) for each in ratios] == [None] * 9


def test_on_probation_one_window_is_enough(windows, stats) -> None:
    assert add(windows, stats(overflow=9), strict=True) is None
    assert add(windows, stats(overflow=10), strict=True) == "overflow_sustained"


def test_overflow_at_the_floor_needs_no_window(windows, stats) -> None:
    windows.begin(65536.0, HALVING)
    assert add(windows, stats(steps=1, overflow=0, loss_scale=SCALE_FLOOR)) is None
    assert add(windows, stats(steps=1, overflow=1, loss_scale=SCALE_FLOOR)) == "scale_floor"


@pytest.mark.parametrize("scale", [65536.0, 2.0**34])
def test_the_search_for_a_scale_is_no_storm(windows, stats, scale) -> None:
    """All overflow at once, down to a scale that fits: slow steps, one statistic each."""
    windows.begin(scale, HALVING)
    for backoffs in range(1, 31):
        event = stats(steps=1, overflow=1, loss_scale=scale * 0.5**backoffs)
        assert add(windows, event, strict=True) is None
    assert [add(windows, stats(steps=1), strict=True) for _ in range(300)] == [None] * 300


def test_the_search_may_share_an_event_with_steps_that_fit(windows, stats) -> None:
    windows.begin(65536.0, HALVING)
    assert add(windows, stats(steps=132, overflow=32)) is None, "100 of 100 fitted"
    assert add(windows, stats(overflow=31)) == "overflow_storm", "the search is over"


def test_the_first_step_that_fits_ends_the_search(windows, stats) -> None:
    windows.begin(65536.0, HALVING)
    assert add(windows, stats(steps=105, overflow=5)) is None
    assert add(windows, stats(steps=100, overflow=40)) == "overflow_storm"


def test_the_search_ends_where_the_floor_would_be(windows, stats) -> None:
    windows.begin(65536.0, HALVING)
    found = windows.add(stats(steps=132, overflow=82), SETTINGS, strict=False)
    assert found is not None
    assert found.said.startswith("50 of 100 steps overflowed")


def test_a_slow_backoff_searches_longer(windows, stats) -> None:
    windows.begin(65536.0, Scaling(backoff_factor=0.9, floor=SCALE_FLOOR))
    found = windows.add(stats(steps=311, overflow=311), SETTINGS, strict=False)
    assert found is not None
    assert found.said.startswith("100 of 100 steps overflowed")


def test_a_scale_at_the_floor_has_nowhere_to_search(windows, stats) -> None:
    windows.begin(SCALE_FLOOR, HALVING)
    assert add(windows, stats(overflow=50)) == "overflow_storm"
    windows.begin(SCALE_FLOOR / 4, HALVING)
    assert add(windows, stats(overflow=30)) is None, "nor does it owe anything"


def test_the_floor_is_as_set(windows, stats) -> None:
    windows.begin(8.0, Scaling(floor=4.0))
    assert add(windows, stats(steps=1, overflow=1, loss_scale=8.0)) is None
    unscaled = stats(steps=1, overflow=1, loss_scale=1.0, precision="bf16")
    assert add(windows, unscaled) is None
    assert add(windows, stats(steps=1, overflow=1, loss_scale=4.0)) == "scale_floor"
