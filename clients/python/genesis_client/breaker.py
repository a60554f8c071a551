"""After failures nobody waits for the predictor until it has answered again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

MOST_FAILURES = 3  # in a row
FIRST_SECONDS, LONGEST_SECONDS = 0.2, 5.0


class Breaker:
    """Opens after failures in a row, and closes once a probe has succeeded.

    Attributes:
        reason: Why it is open, or empty.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._pause = FIRST_SECONDS
        self._due = 0.0
        self.reason = ""

    @property
    def seconds_to_probe(self) -> float:
        """Seconds after which to probe while it is open."""
        return self._due - self._clock()

    def succeeded(self) -> None:
        """Note that a question was answered."""
        if self._failures:
            with self._lock:
                self._failures, self._pause = 0, FIRST_SECONDS

    def failed(self, reason: str, *, at_once: bool) -> bool:
        """Note a failure of a question or a probe.

        Args:
            reason: What happened.
            at_once: Open now, although it is the first failure.

        Returns:
            Whether this has opened it.
        """
        with self._lock:
            self._failures += 1
            if not (at_once or self.reason or self._failures >= MOST_FAILURES):
                return False
            opened = not self.reason
            self.reason = reason
            if opened or self._due <= self._clock():
                self._due = self._clock() + self._pause
                self._pause = min(2 * self._pause, LONGEST_SECONDS)
            return opened

    def probed(self) -> None:
        """Close it after a successful probe; a failure of the next question opens it again."""
        with self._lock:
            self._failures = MOST_FAILURES - 1
            self.reason = ""
