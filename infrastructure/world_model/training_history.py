"""What happened in each epoch of a training, gathered from the loop's events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from infrastructure.events.event import BaseEvent, Evaluated, PrecisionChanged, StepStats
from infrastructure.events.precision_state import PrecisionWish


class EpochRecord(TypedDict):
    """One epoch of `WorldModel.training_history`.

    ``loss`` is the mean training loss, NaN if no step had a finite one; ``timestamp`` is Unix
    time in seconds; ``fp16_overflow_batches`` counts the batches of this epoch whose step was
    skipped for a non-finite gradient.
    """

    epoch: int
    loss: float
    timestamp: float
    fp16_overflow_batches: int


class HistoryRecorder:
    """Turns a training's events into `epochs`.

    Args:
        clock: Unix time in seconds.

    Attributes:
        epochs: One record each.
        precision: In force at the end.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.epochs: list[EpochRecord] = []
        self.precision: PrecisionWish = "fp32"
        self._clock = clock
        self._stats: StepStats | None = None  # of the epoch under way

    def __call__(self, event: BaseEvent) -> None:
        """Take an event of the training loop."""
        if isinstance(event, StepStats):
            self._stats = event if self._stats is None else self._stats.merged_with(event)
        elif isinstance(event, PrecisionChanged):
            self.precision = event.state.effective
        elif isinstance(event, Evaluated):
            stats, self._stats = self._stats, None
            loss = None if stats is None else stats.loss
            self.epochs.append(
                EpochRecord(
                    epoch=event.epoch,
                    loss=float("nan") if loss is None else loss,
                    timestamp=self._clock(),
                    fp16_overflow_batches=0 if stats is None else stats.overflow,
                )
            )
