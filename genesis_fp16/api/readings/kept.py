"""What 1,000 agents make expensive, kept between two readings for as long as it holds."""

from __future__ import annotations

import time
from pathlib import Path

from genesis_fp16.domain.schedule import next_due
from genesis_fp16.plugins.scan import Scan, is_current, scan_installed
from infrastructure.agent_contract import Schedule

SCAN_SECONDS = 30.0  # after which is scanned again, for what `is_current` does not see
_MOST_SCHEDULES = 10_000


class KeptScan:
    """What is installed; read again once it has changed."""

    def __init__(self) -> None:
        self._scan, self._until = Scan(), 0.0

    def look(self, home: Path) -> Scan:
        """What is installed and configured in *home*, always the same one."""
        if time.monotonic() >= self._until or not is_current(self._scan):
            self._scan, self._until = scan_installed(home), time.monotonic() + SCAN_SECONDS
        return self._scan


class DueTimes:
    """When schedules are due next."""

    def __init__(self) -> None:
        self._known: dict[Schedule, tuple[float, float | None]] = {}

    def next(self, schedule: Schedule) -> float | None:
        """The next due time of *schedule* in Unix seconds; None if it never fires again."""
        now = time.time()
        since, due = self._known.get(schedule, (now + 1.0, None))
        if since <= now and (due is None or now < due):  # also if the clock is set back
            return due
        if len(self._known) >= _MOST_SCHEDULES:
            self._known.clear()
        due = next_due(schedule, now)
        self._known[schedule] = now, due
        return due
