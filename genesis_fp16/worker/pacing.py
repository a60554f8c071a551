"""Keeps a training with fast steps or short epochs from flooding its event file."""

from __future__ import annotations

import time
from collections.abc import Callable

from genesis_fp16.worker.channel import Emit
from infrastructure.events.event import BaseEvent, BaselineCompared, Evaluated, StepStats

_PAUSE_SECONDS = 1.0


class PacedEvents:
    """Passes events on: `StepStats` and `Evaluated` once a second, however often they come.

    Statistics in between are added up, so that no step is lost; of evaluations the last one is
    kept. Events of other kinds pass at once, after what was held back; a comparison with FP32,
    which has a pace of its own, sends nothing before it. The end of the ``with`` block sends all.

    Args:
        emit: Takes the events.
        clock: Monotonic seconds.
    """

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._clock = emit, clock
        self._stats: StepStats | None = None
        self._evaluated: Evaluated | None = None
        self._due = 0.0

    def __call__(self, event: BaseEvent) -> None:
        """Take in *event*."""
        match event:
            case StepStats():
                self._stats = event if self._stats is None else _together(self._stats, event)
            case Evaluated():
                self._evaluated = event
            case BaselineCompared():
                self._emit(event)
                return
            case _:
                self.flush()
                self._emit(event)
                return
        if self._clock() >= self._due:
            self.flush()

    def __enter__(self) -> PacedEvents:
        return self

    def __exit__(self, *_error: object) -> None:
        self.flush()

    def flush(self) -> None:
        """Send what was held back."""
        for held in (self._stats, self._evaluated):
            if held is not None:
                self._emit(held)
                self._due = self._clock() + _PAUSE_SECONDS
        self._stats = self._evaluated = None


def _together(first: StepStats, then: StepStats) -> StepStats:
    """Both as one: the increments added, the rest as of *then* where it is known."""
    added = ("applied", "overflow", "nonfinite_loss", "no_gradient", "fp16", "samples", "seconds")
    losses = [each for each in (first, then) if each.loss is not None]
    weights = [each.attempted - each.nonfinite_loss for each in losses]
    total = sum((each.loss or 0.0) * weight for each, weight in zip(losses, weights, strict=True))
    peaks = [first.cuda_memory_allocated_bytes, then.cuda_memory_allocated_bytes]
    changes: dict[str, object] = {
        **{name: getattr(first, name) + getattr(then, name) for name in added},
        # What passes a limit in between must not be hidden by the step after it.
        "consecutive_nonfinite_losses": max(
            first.consecutive_nonfinite_losses, then.consecutive_nonfinite_losses
        ),
        "loss": total / sum(weights) if sum(weights) else then.loss,
        "grad_norm": first.grad_norm if then.grad_norm is None else then.grad_norm,
        "cuda_memory_allocated_bytes": max((p for p in peaks if p is not None), default=None),
    }
    return then.model_copy(update=changes)
