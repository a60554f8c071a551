"""Reads the events of all attempts in bounded time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from genesis_fp16.runs.active_attempt import ActiveAttempt

READ_SECONDS = 0.1  # for the events of all attempts; a round of the daemon's loop reads twice


def read_in_shares(
    attempts: Iterable[ActiveAttempt],
    clock: Callable[[], float],
    read: Callable[[ActiveAttempt, float], None],
) -> Iterator[ActiveAttempt]:
    """Read in equal shares of `READ_SECONDS`; what one attempt does not need is for the others.

    Args:
        attempts: Attempts under way.
        clock: Monotonic seconds.
        read: Reads events of an attempt until a monotonic time, one event at least.

    Yields:
        Each attempt whose turn came, the one that waited longest first.
    """
    waiting = deque(sorted(attempts, key=lambda attempt: attempt.read_at))
    end = clock() + READ_SECONDS
    while waiting and (began := clock()) < end:
        active = waiting.popleft()
        if active.daemon_error:
            continue
        active.read_at = began
        read(active, began + (end - began) / (len(waiting) + 1))
        if active.progress.tail.behind and not active.daemon_error and not active.unreadable:
            waiting.append(active)
        yield active
