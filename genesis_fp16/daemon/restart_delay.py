"""How long to wait before a process that ended starts again."""

from __future__ import annotations

from collections.abc import Callable

FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS = 1.0, 60.0
STABLE_SECONDS = 60.0  # after which a restart counts as the first


class RestartDelay:
    """Doubles with each end, unless the process ran for long.

    Args:
        clock: Monotonic seconds.

    Attributes:
        seconds: The last delay.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.seconds = clock, FIRST_RESTART_SECONDS
        self._started_at = self._may_start_at = -LONGEST_RESTART_SECONDS

    def is_over(self) -> bool:
        """Whether the process may start."""
        return self._clock() >= self._may_start_at

    def started(self) -> None:
        """The process starts now."""
        self._started_at = self._clock()

    def ended(self) -> None:
        """The process has ended, or could not start."""
        now = self._clock()
        stable = now - self._started_at >= STABLE_SECONDS
        doubled = min(2 * self.seconds, LONGEST_RESTART_SECONDS)
        self.seconds = FIRST_RESTART_SECONDS if stable else doubled
        self._may_start_at = now + self.seconds
