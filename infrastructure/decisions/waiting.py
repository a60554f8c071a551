"""Outcomes in a log of decisions that no run has taken in yet, counted in the log itself.

The log and the place up to which it was taken in are the count, so it survives every restart.
"""

from __future__ import annotations

import time
from pathlib import Path

from infrastructure.decisions.intake import taken_until
from infrastructure.decisions.log import read_records
from infrastructure.decisions.records import BEGINNING, LogRecord

COUNTING_SECONDS = 0.02  # of one call


class WaitingOutcomes:
    """Counts an agent's outcomes and transitions that its next run would take in.

    Args:
        log: Folder of the agent's log.
    """

    def __init__(self, log: Path) -> None:
        self._log, self._taken, self._read = log, BEGINNING, BEGINNING
        self._count = 0

    def count(self, seconds: float = COUNTING_SECONDS) -> int:
        """Their number; too small if more records are new than can be read in *seconds*.

        Raises:
            OSError: The log cannot be read.
        """
        taken = taken_until(self._log)
        if taken != self._taken:
            self._taken = self._read = taken
            self._count = 0
        until = time.monotonic() + seconds
        for _, end, record in read_records(self._log, self._read):
            self._count += _is_outcome(record)
            self._read = end
            if time.monotonic() >= until:
                break
        return self._count


def _is_outcome(record: LogRecord) -> bool:
    if record["kind"] == "outcome":
        return bool(record["state"] != "partial")
    return bool(record["kind"] == "transition")
