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
        self._overflow = self._finite = 0
        self._loss_sum = 0.0

    def __call__(self, event: BaseEvent) -> None:
        """Take an event of the training loop."""
        if isinstance(event, StepStats):
            self._overflow += event.overflow
            if event.loss is not None:
                finite = event.attempted - event.nonfinite_loss
                self._finite += finite
                self._loss_sum += event.loss * finite
        elif isinstance(event, PrecisionChanged):
            self.precision = event.state.effective
        elif isinstance(event, Evaluated):
            self.epochs.append(
                EpochRecord(
                    epoch=event.epoch,
                    loss=self._loss_sum / self._finite if self._finite else float("nan"),
                    timestamp=self._clock(),
                    fp16_overflow_batches=self._overflow,
                )
            )
            self._overflow = self._finite = 0
            self._loss_sum = 0.0
