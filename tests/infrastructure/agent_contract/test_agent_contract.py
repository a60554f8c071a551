from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract import Evaluation, Schedule, Transition
from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec

OUTCOME = Discrete(values=("worse", "better"))


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
    ("text", "words"),
    [
        ("hourly", "every 30m"),
        ("every 0s", "1 second"),
        ("cron 0 3 * *", "five fields"),
        ("cron 0 3 * * 1", "mon, not 1"),
        ("", "every 30m"),
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"targets": {"next": Text()}}, "is Text"),
        ({"targets": {"velocity": Box(delta=True)}}, "declare observation 'velocity'"),
        ({"targets": {"x": Box(shape=(2,), delta=True)}}, "shape"),
        ({"success": ("outcome", "great")}, "no label"),
        ({"improvement": "outcome"}, "no scalar Box"),
        ({"targets": {}}, "at least one"),
    ],
)
def test_a_wrong_spec_is_named(change, words):
    spec = {"observation": {"x": Box()}, "action": {}, "targets": {"outcome": OUTCOME}}
    with pytest.raises(ValueError, match=words):
        TransitionSpec(**{**spec, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"group": ""}, "needs a group"),
        ({"reward": math.nan}, "finite"),
        ({"propensity": 0.0}, "propensity"),
        ({"propensity": 1.5}, "propensity"),
    ],
)
def test_a_wrong_transition_is_named(change, words):
    with pytest.raises(ValueError, match=words):
        Transition(**{"group": "g", "observation": {}, "action": {}, **change})


def test_better_is_by_direction_and_nan_never_is():
    def evaluation(value, higher=True):
        return Evaluation(metrics={"m": value}, primary="m", higher_is_better=higher)

    assert evaluation(2.0).better_than(evaluation(1.0))
    assert evaluation(1.0, higher=False).better_than(evaluation(2.0, higher=False))
    assert not evaluation(math.nan).better_than(evaluation(1.0))
    assert evaluation(1.0).better_than(evaluation(math.nan))
    with pytest.raises(ValueError, match="not among"):
        Evaluation(metrics={}, primary="m", higher_is_better=True)
