"""Lines about a long command: when there is one, and how long the rest will take."""

import pytest

from infrastructure.precision_lab.progress import ProgressLines, duration


def test_a_line_for_each_unit_and_now_and_then_between() -> None:
    lines, now = [], [100.0]
    progress = ProgressLines(lines.append, lambda: now[0])
    for done in range(100):
        progress(done, 100, unit="steps")
        now[0] += 1.0
    assert lines == [
        "0 of 100 steps",
        *("15 of 100 steps, 85 s left", "30 of 100 steps, 70 s left", "45 of 100 steps, 55 s left"),
        *("60 of 100 steps, 40 s left", "75 of 100 steps, 25 s left", "90 of 100 steps, 10 s left"),
    ]
    progress(0, unit="repetitions of the search")
    assert lines[-1] == "0 repetitions of the search"


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 s"), (720, "12 min"), (11100, "3 h 05 min")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text
