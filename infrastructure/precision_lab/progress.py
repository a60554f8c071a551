"""How far a long command is, and how long it will still take, as lines for a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

LINE_EVERY_SECONDS = 15.0


def unreported(
    done: int,
    total: int | None = None,
    *,
    unit: str = "",
    metrics: Mapping[str, float] | None = None,
) -> None:
    """A `ReportProgress` that tells nobody."""


class ProgressLines:
    """A `ReportProgress` that emits a line when the unit changes, and now and then between.

    The time left is that of the remaining units at the mean speed of those that are done.

    Args:
        emit: Receives lines.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(
        self, emit: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._emit, self._clock = emit, clock
        self._unit: str | None = None
        self._began = self._last_line = 0.0
        self._first = 0

    def __call__(
        self,
        done: int,
        total: int | None = None,
        *,
        unit: str = "",
        metrics: Mapping[str, float] | None = None,  # noqa: ARG002  # part of the protocol
    ) -> None:
        """*done* of *total* units are done."""
        now = self._clock()
        if unit != self._unit:
            self._unit, self._began, self._first = unit, now, done
        elif now - self._last_line < LINE_EVERY_SECONDS:
            return
        self._last_line = now
        if total is None:
            self._emit(f"{done} {unit}")
            return
        left = ""
        if self._first < done < total:
            seconds = (total - done) * (now - self._began) / (done - self._first)
            left = f", {duration(seconds)} left"
        self._emit(f"{done} of {total} {unit}{left}")


def duration(seconds: float) -> str:
    """*seconds* as people write it: ``45 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
