"""Logs overflows of gradients through `logging`, when the trainer's counters are read."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

_PAUSE_SECONDS = 10.0

log = logging.getLogger("infrastructure.training")


class OverflowLog:
    """Logs how many steps overflowed since the last line, and how the loss scale changed.

    At most one line in ten seconds; the next line counts what was left out.

    Args:
        scale: Loss scale at the start; 1 in a precision without one.
        enabled: False logs nothing; for all ranks but the first.
        clock: Function that returns seconds, monotonic.
    """

    def __init__(
        self,
        *,
        scale: float,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enabled, self._clock = enabled, clock
        self._due = -math.inf
        self._step = self._overflow_steps = 0
        self._scale: float | None = scale

    def restart(self, *, step: int, overflow_steps: int) -> None:
        """Count from these numbers on, those of a state that was loaded."""
        self._step, self._overflow_steps, self._scale = step, overflow_steps, None

    def forget_scale(self) -> None:
        """Do not log the last scale as the one before an overflow: the precision has changed."""
        self._scale = None

    def observe(self, *, step: int, overflow_steps: int, scale: float) -> None:
        """Log the overflows since the last line, if there are any and a line is due.

        Args:
            step: Optimizer steps attempted so far.
            overflow_steps: Those of them that overflowed.
            scale: Loss scale after *step*; 1 in a precision without one.
        """
        if step < self._step:
            return  # a reading that arrives after a later one
        count = overflow_steps - self._overflow_steps
        if count > 0 and self._enabled:
            now = self._clock()
            if now < self._due:
                return
            self._due = now + _PAUSE_SECONDS
            self._write(step, count, scale)
        self._step, self._overflow_steps, self._scale = step, overflow_steps, scale

    def _write(self, step: int, count: int, scale: float) -> None:
        first = self._step + 1
        steps = f"at step {step}" if first == step else f"in {count} of steps {first} to {step}"
        before = "" if self._scale is None else f"{self._scale:g} -> "
        log.warning("Gradient overflow %s, update skipped; loss scale %s%g", steps, before, scale)
