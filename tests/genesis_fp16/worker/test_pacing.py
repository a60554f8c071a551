"""A training that reports many times a second sends once a second, and loses no count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.worker.pacing import PacedEvents
from infrastructure.events.event import (
    BaseEvent,
    BaselineCompared,
    Evaluated,
    Notice,
    StepStats,
)


class Paced:
    """The pace, a clock, and what came through."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[BaseEvent] = []
        self.emit = PacedEvents(self.sent.append, clock=lambda: self.now)


@pytest.fixture
def paced() -> Paced:
    return Paced()


def steps(**changes: object) -> StepStats:
    fields = {"step": 10, "applied": 10, "fp16": 10, "loss_scale": 4.0, "precision": "fp16"}
    return StepStats.model_validate({**fields, **changes})


def evaluated(epoch: int) -> Evaluated:
    return Evaluated(epoch=epoch, metrics={"mse": 1.0}, primary="mse")


def test_an_hour_of_short_epochs_sends_once_a_second(paced: Paced) -> None:
    with paced.emit as emit:
        for epoch in range(36_000):
            paced.now = 100.0 + epoch / 10
            emit(steps(step=10 * (epoch + 1), epoch=epoch))
            emit(evaluated(epoch))
    received = [event for event in paced.sent if isinstance(event, StepStats)]
    assert 3500 < len(received) <= 3602
    assert len(paced.sent) - len(received) <= 3602
    assert sum(event.applied for event in received) == received[-1].step == 360_000
    assert paced.sent[-1] == evaluated(35_999)


def test_what_was_held_back_comes_before_other_events_and_at_the_end(paced: Paced) -> None:
    notice = Notice(event="weights_restored")
    with paced.emit as emit:
        for event in (steps(step=10), steps(step=20), evaluated(1), notice, steps(step=30)):
            emit(event)
    kinds = [event.kind for event in paced.sent]
    assert kinds == ["step_stats", "step_stats", "evaluated", "notice", "step_stats"]
    assert [event.step for event in paced.sent if isinstance(event, StepStats)] == [10, 20, 30]


def test_a_comparison_waits_for_nothing(paced: Paced) -> None:
    compared = BaselineCompared(step=9, precision="fp16", loss_scale=1.0, loss=1.0, fp32_loss=1.0)
    for event in (steps(), steps(), compared):
        paced.emit(event)
    assert [event.kind for event in paced.sent] == ["step_stats", "baseline_compared"]


def test_windows_held_back_are_merged(paced: Paced) -> None:
    paced.emit(steps())
    paced.emit(steps(step=20, applied=6, overflow=2, nonfinite_loss=2))
    paced.emit(steps(step=30, applied=4))
    paced.emit.flush()
    assert len(paced.sent) == 2
    merged = paced.sent[-1]
    assert isinstance(merged, StepStats)
    assert (merged.step, merged.applied, merged.overflow, merged.nonfinite_loss) == (30, 10, 2, 2)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 3)), max_size=40))
def test_no_step_is_lost_whenever_they_come(windows: list[tuple[int, float]]) -> None:
    paced = Paced()
    with paced.emit as emit:
        for applied, seconds in windows:
            paced.now += seconds
            emit(steps(applied=applied))
    received = [event for event in paced.sent if isinstance(event, StepStats)]
    assert sum(event.applied for event in received) == sum(applied for applied, _ in windows)
