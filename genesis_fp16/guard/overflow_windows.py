"""Overflows, judged by windows of steps; the first search for a loss scale does not count."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from genesis_fp16.domain.guard import MOST_KEPT, Finding, GuardSettings, Trigger
from infrastructure.events.event import StepStats


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """How the trainer scales its loss.

    Attributes:
        backoff_factor: An overflow multiplies the scale by it.
        floor: The scale falls no further.
    """

    backoff_factor: float = 0.5
    floor: float = 2.0**-16

    def backoffs_from(self, loss_scale: float) -> int:
        """How many overflows lead from *loss_scale* to the floor."""
        above_floor = max(1.0, loss_scale / self.floor)
        return math.ceil(-math.log(above_floor) / math.log(self.backoff_factor))


class OverflowWindows:
    """Counts one agent's overflows in half precision, run after run.

    A training begins with a loss scale that may be far too high: every step overflows until one
    fits. These overflows, at most as many as lead from the scale it began with to the floor, are
    the search, and belong to no window.
    """

    def __init__(self) -> None:
        self._floor = 0.0
        self._ratios: deque[float] = deque(maxlen=MOST_KEPT)
        self._steps = self._overflows = 0
        self._searchable = 0

    def begin(self, loss_scale: float, scaling: Scaling) -> None:
        """FP16 begins, at *loss_scale*: a search may follow."""
        self._floor, self._searchable = scaling.floor, scaling.backoffs_from(loss_scale)

    def add(self, stats: StepStats, settings: GuardSettings, *, strict: bool) -> Finding | None:
        """Take in steps made in half precision.

        Args:
            stats: The steps.
            settings: Hold the limits.
            strict: One window is enough for `Trigger.OVERFLOW_SUSTAINED`.
        """
        spared = min(self._searchable, stats.overflow)
        self._searchable = 0 if stats.applied else self._searchable - spared
        self._steps += stats.attempted - spared
        self._overflows += stats.overflow - spared
        if stats.precision == "fp16" and stats.overflow and stats.loss_scale <= self._floor:
            return self._at_floor(stats)
        if self._steps < settings.guard_window_steps:
            return None
        return self._close(settings, strict=strict)

    def _at_floor(self, stats: StepStats) -> Finding:
        said = (
            f"{stats.overflow} of {stats.attempted} steps overflowed with the loss scale at its "
            f"floor, {stats.loss_scale:g}: no scale fits these gradients"
        )
        numbers: dict[str, object] = {"steps": stats.attempted, "overflows": stats.overflow}
        numbers |= {"loss_scale": stats.loss_scale, "floor": self._floor}
        return Finding(trigger=Trigger.SCALE_FLOOR, said=said, numbers=numbers)

    def _close(self, settings: GuardSettings, *, strict: bool) -> Finding | None:
        steps, overflows = self._steps, self._overflows
        self._steps = self._overflows = 0
        self._ratios.append(overflows / steps)
        wanted = 1 if strict else settings.guard_sustained_windows
        last = list(self._ratios)[-wanted:]
        numbers = {"steps": steps, "overflows": overflows, "ratios": list(self._ratios)}
        found = f"{overflows} of {steps} steps overflowed ({overflows / steps:.0%}"
        if overflows / steps > settings.guard_storm_ratio:
            limit = settings.guard_storm_ratio
            return Finding(
                trigger=Trigger.OVERFLOW_STORM,
                said=f"{found}; the limit is {limit:.0%})",
                numbers={**numbers, "limit": limit},
            )
        limit = settings.guard_sustained_ratio
        if len(last) == wanted and min(last) >= limit:
            return Finding(
                trigger=Trigger.OVERFLOW_SUSTAINED,
                said=f"{found}), and at least {limit:.0%} in each of the last {wanted} windows",
                numbers={**numbers, "limit": limit, "windows": wanted},
            )
        return None
