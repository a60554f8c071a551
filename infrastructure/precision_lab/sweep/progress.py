"""How far a sweep is, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from infrastructure.precision_lab.progress import LINE_EVERY_SECONDS, duration
from infrastructure.precision_lab.results import CellSummary
from infrastructure.precision_lab.sweep.plan import Cell


class Progress:
    """Counts cells and updates; emits a line for each cell that ends, and now and then between.

    The time left is that of the remaining updates, at the mean speed of the preset's cells that
    have ended, or of all cells while none has.

    Args:
        cells: Cells of the sweep.
        updates: Updates of each.
        jobs: Cells that run at once.
        emit: Receives lines.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        cells: Iterable[Cell],
        updates: int,
        jobs: int,
        emit: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._updates, self._jobs, self._emit, self._clock = updates, jobs, emit, clock
        self._steps = dict.fromkeys(cells, 0)
        self._ended: dict[Cell, bool] = dict.fromkeys(self._steps, False)
        self._speeds: dict[str, list[float]] = {}  # seconds an update, by preset
        self._last_line = clock()

    def keep(self, cell: Cell, summary: CellSummary) -> None:
        """Count *cell*, which an earlier call of the command has run."""
        self._ended[cell] = True
        if summary.updates and summary.seconds > 0:
            self._speeds.setdefault(cell.preset, []).append(summary.seconds / summary.updates)

    def step(self, cell: Cell, number: int) -> None:
        """*cell* has made *number* updates."""
        self._steps[cell] = number
        if self._clock() - self._last_line >= LINE_EVERY_SECONDS:
            self._say(f"{cell}: update {number} of {self._updates}")

    def end(self, cell: Cell, summary: CellSummary) -> None:
        """*cell* has ended."""
        self.keep(cell, summary)
        reason = f" ({summary.reason})" if summary.reason else ""
        self._say(f"{cell}: {summary.category} in {summary.seconds:.1f} s{reason}")

    def _say(self, what: str) -> None:
        self._last_line = self._clock()
        done = sum(self._ended.values())
        left = self.seconds_left()
        time_left = "" if left is None else f", {duration(left)} left"
        self._emit(f"[{done} of {len(self._ended)} cells{time_left}] {what}")

    def seconds_left(self) -> float | None:
        """Expected time until the last cell ends; None while nothing is known of the speed."""
        every = [speed for speeds in self._speeds.values() for speed in speeds]
        if not every:
            return None
        seconds = 0.0
        for cell, ended in self._ended.items():
            if not ended:
                known = self._speeds.get(cell.preset, every)
                seconds += (self._updates - self._steps[cell]) * sum(known) / len(known)
        return seconds / self._jobs
