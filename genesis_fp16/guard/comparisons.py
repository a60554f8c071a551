"""Comparisons of half precision with FP32 on a frozen batch, judged when several agree."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from genesis_fp16.domain.guard import MOST_KEPT, Finding, GuardSettings, Trigger
from infrastructure.events.event import SMALLEST_LOSS, BaselineCompared

WRONG_GRADIENT = 0.25  # relative error from which a gradient leads astray; pre-flight's limit


class Comparisons:
    """Counts how many comparisons in a row speak against half precision."""

    def __init__(self) -> None:
        self._drifts: deque[float] = deque(maxlen=MOST_KEPT)
        self._underflows: deque[float] = deque(maxlen=MOST_KEPT)
        self._speedups: deque[float] = deque(maxlen=MOST_KEPT)

    def add(
        self, compared: BaselineCompared, settings: GuardSettings, *, accelerator: bool
    ) -> Finding | None:
        """Take in a comparison.

        Args:
            compared: It.
            settings: Hold the limits.
            accelerator: False for a CPU, whose times do not count.
        """
        wanted = settings.guard_comparisons
        drift = compared.loss_error
        if not math.isnan(drift):
            _count(self._drifts, drift, drift > settings.guard_loss_drift)
        lost, error = compared.underflow, compared.gradient_error
        if compared.comparable and lost is not None and error is not None:
            wrong = WRONG_GRADIENT < error < math.inf
            _count(self._underflows, lost, wrong and lost > settings.guard_underflow)
        if accelerator and compared.seconds and compared.fp32_seconds:
            self._speedups.append(compared.fp32_seconds / compared.seconds)
        if len(self._drifts) >= wanted:
            return _found_drift(compared, list(self._drifts), settings)
        if len(self._underflows) >= wanted:
            return _found_underflow(compared, list(self._underflows), settings)
        recent = list(self._speedups)[-wanted:]
        if len(recent) == wanted and median(recent) < settings.guard_min_speedup:
            return _found_slow(recent, settings)
        return None


def _count(series: deque[float], value: float, bad: bool) -> None:
    """Add a bad *value* to those in a row; a good one ends the row."""
    if bad:
        series.append(value)
    else:
        series.clear()


def _found_drift(
    compared: BaselineCompared, drifts: list[float], settings: GuardSettings
) -> Finding:
    small = abs(compared.fp32_loss) < compared.loss_size
    whole = f"{SMALLEST_LOSS:.0%} of the run's largest FP32 loss" if small else "the FP32 loss"
    said = (
        f"the {compared.precision} loss of a frozen batch is {compared.loss:.6g} where FP32 has "
        f"{compared.fp32_loss:.6g}: the difference is {drifts[-1]:.1%} of {compared.loss_size:.6g} "
        f"({whole}), in {len(drifts)} comparisons in a row above the limit of "
        f"{settings.guard_loss_drift:.1%}"
    )
    numbers = {"drifts": drifts, "limit": settings.guard_loss_drift}
    return Finding(trigger=Trigger.LOSS_DRIFT, said=said, numbers=numbers)


def _found_underflow(
    compared: BaselineCompared, lost: list[float], settings: GuardSettings
) -> Finding:
    said = (
        f"{lost[-1]:.0%} of the gradient's elements are lost to zero in {compared.precision} and "
        f"the rest is {compared.gradient_error:.0%} off, in {len(lost)} comparisons in a row; the "
        f"limit is {settings.guard_underflow:.0%}"
    )
    numbers = {"underflows": lost, "limit": settings.guard_underflow}
    numbers["gradient_error"] = compared.gradient_error or 0.0
    return Finding(trigger=Trigger.UNDERFLOW, said=said, numbers=numbers)


def _found_slow(speedups: list[float], settings: GuardSettings) -> Finding:
    said = (
        f"half precision runs at {median(speedups):.2f} of FP32's speed, the median of "
        f"{len(speedups)} comparisons; the limit is {settings.guard_min_speedup:g}"
    )
    numbers = {"speedups": speedups, "limit": settings.guard_min_speedup}
    return Finding(trigger=Trigger.SLOWER_THAN_FP32, said=said, numbers=numbers)
