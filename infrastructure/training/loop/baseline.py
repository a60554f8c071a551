"""Compares a half precision with FP32 every few steps while it is in force."""

from __future__ import annotations

import time
from collections.abc import Callable

from infrastructure.events.event import BaseEvent, Notice
from infrastructure.training.diagnostics import Fp32Shadow
from infrastructure.training.loop.progress import SavedProgress
from infrastructure.training.parts import Trainer
from infrastructure.training.precision import Precision

_FIRST_STEP = 10  # early: short runs are compared too
_SHORTEST_PAUSE_SECONDS = 1.0  # fast steps must not flood the event file


class BaselineObserver:
    """A `StepObserver` that emits `BaselineCompared` without affecting the training.

    Args:
        interval: Steps between two comparisons.
        progress: Keeps the largest FP32 loss.

    Attributes:
        interval_steps: See `StepObserver`.
    """

    def __init__(
        self,
        shadow: Fp32Shadow,
        interval: int,
        emit: Callable[[BaseEvent], None],
        progress: SavedProgress,
    ) -> None:
        self._shadow: Fp32Shadow | None = shadow
        self._interval, self._emit, self._progress = interval, emit, progress
        self.interval_steps = min(_FIRST_STEP, interval)
        self._next_step, self._next_at = 0, 0.0

    def observe(self, trainer: Trainer) -> None:
        """Compare if it is time; see `StepObserver`."""
        if self._shadow is None or trainer.precision is Precision.FP32:
            return
        if trainer.training_steps < self._next_step or time.monotonic() < self._next_at:
            return
        try:
            compared = self._shadow.compare(
                step=trainer.training_steps,
                precision=trainer.precision,
                loss_scale=float(trainer.get_stats()["current_scale"]),
            )
        except Exception as error:  # of a plugin's code, or of the device: the training goes on
            self._shadow = None
            consequence = "training continues without a baseline"
            self._emit(Notice.warning("baseline_not_measured", error, consequence=consequence))
            return
        self._progress.record_fp32_loss(compared.fp32_loss)
        largest = self._progress.largest_fp32_loss
        self._emit(compared.model_copy(update={"largest_fp32_loss": largest}))
        self._next_step = trainer.training_steps + self._interval
        self._next_at = time.monotonic() + _SHORTEST_PAUSE_SECONDS
