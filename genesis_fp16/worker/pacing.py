"""Limits the rate of events, so that fast steps or short epochs do not flood the event file."""

from __future__ import annotations

import time
from collections.abc import Callable

from genesis_fp16.worker.channel import Emit
from infrastructure.events.event import BaseEvent, BaselineCompared, Evaluated, StepStats

_PAUSE_SECONDS = 1.0


class PacedEvents:
    """Passes events on: `StepStats` and `Evaluated` at most once a second.

    Statistics in between are merged, so that no step is lost; of evaluations the last one is
    kept. Other events pass at once, after those held back; `BaselineCompared`, whose rate is
    limited elsewhere, passes without sending them. The end of the ``with`` block sends the rest.

    Args:
        emit: Called with the events.
        clock: Monotonic seconds.
    """

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._clock = emit, clock
        self._stats: StepStats | None = None
        self._evaluated: Evaluated | None = None
        self._due = 0.0

    def __call__(self, event: BaseEvent) -> None:
        """Pass *event* on, or hold it back."""
        match event:
            case StepStats():
                self._stats = event if self._stats is None else self._stats.merged_with(event)
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
        """Send the events held back."""
        for held in (self._stats, self._evaluated):
            if held is not None:
                self._emit(held)
                self._due = self._clock() + _PAUSE_SECONDS
        self._stats = self._evaluated = None
