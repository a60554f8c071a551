"""A training that reports many times a second is heard once a second, and loses no count."""

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
        self.said: list[BaseEvent] = []
        self.emit = PacedEvents(self.said.append, clock=lambda: self.now)


@pytest.fixture
def paced() -> Paced:
    return Paced()


def steps(**changes: object) -> StepStats:
    fields = {"step": 10, "applied": 10, "fp16": 10, "loss_scale": 4.0, "precision": "fp16"}
    return StepStats.model_validate({**fields, **changes})


def evaluated(epoch: int) -> Evaluated:
    return Evaluated(epoch=epoch, metrics={"mse": 1.0}, primary="mse")


def test_an_hour_of_short_epochs_is_heard_once_a_second(paced: Paced) -> None:
    with paced.emit as emit:
        for epoch in range(36_000):
            paced.now = 100.0 + epoch / 10
            emit(steps(step=10 * (epoch + 1), epoch=epoch))
            emit(evaluated(epoch))
    heard = [event for event in paced.said if isinstance(event, StepStats)]
    assert 3500 < len(heard) <= 3602
    assert len(paced.said) - len(heard) <= 3602
    assert sum(event.applied for event in heard) == heard[-1].step == 360_000
    assert paced.said[-1] == evaluated(35_999)


def test_what_was_held_back_comes_before_other_events_and_at_the_end(paced: Paced) -> None:
    notice = Notice(event="went_back_to_checkpoint")
    with paced.emit as emit:
        for event in (steps(step=10), steps(step=20), evaluated(1), notice, steps(step=30)):
            emit(event)
    kinds = [event.kind for event in paced.said]
    assert kinds == ["step_stats", "step_stats", "evaluated", "notice", "step_stats"]
    assert [event.step for event in paced.said if isinstance(event, StepStats)] == [10, 20, 30]


def test_a_comparison_waits_for_nothing(paced: Paced) -> None:
    compared = BaselineCompared(step=9, precision="fp16", loss_scale=1.0, loss=1.0, fp32_loss=1.0)
    for event in (steps(), steps(), compared):
        paced.emit(event)
    assert [event.kind for event in paced.said] == ["step_stats", "baseline_compared"]


def test_two_windows_read_as_one(paced: Paced) -> None:
    paced.emit(steps())
    paced.emit(
        steps(
            cuda_memory_allocated_bytes=9,
            step=20,
            applied=6,
            overflow=2,
            nonfinite_loss=2,
            consecutive_nonfinite_losses=2,
        ).model_copy(update={"loss": 1.0, "grad_norm": 3.0, "seconds": 0.5, "samples": 7})
    )
    paced.emit(steps(step=30, loss=4.0, applied=4, loss_scale=2.0, seconds=0.25, epoch=3))
    paced.emit(steps(step=40, applied=0, nonfinite_loss=1, fp16=1))
    paced.emit.flush()
    both = paced.said[-1]
    assert isinstance(both, StepStats)
    assert (both.step, both.applied, both.overflow, both.nonfinite_loss) == (40, 10, 2, 3)
    assert (both.seconds, both.samples, both.fp16) == (0.75, 7, 21)
    assert both.loss == pytest.approx((8 * 1.0 + 4 * 4.0) / 12)
    assert (both.grad_norm, both.loss_scale, both.epoch) == (3.0, 4.0, 0)
    assert both.consecutive_nonfinite_losses == 2, "the guard must hear of them"
    assert both.cuda_memory_allocated_bytes == 9, "the peak, whatever was reported last"


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 3)), max_size=40))
def test_no_step_is_lost_whenever_they_come(windows: list[tuple[int, float]]) -> None:
    paced = Paced()
    with paced.emit as emit:
        for applied, seconds in windows:
            paced.now += seconds
            emit(steps(applied=applied))
    heard = [event for event in paced.said if isinstance(event, StepStats)]
    assert sum(event.applied for event in heard) == sum(applied for applied, _ in windows)
