"""Waiting for progress, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_SECONDS = 120.0


def wait_for(holds: Callable[[], object], what: str, *, every_seconds: float = 0.05) -> float:
    """Wait until *holds* returns something true; the monotonic time of that.

    Raises:
        TimeoutError: It has not for `LIMIT_SECONDS`; the message says *what* was waited for.
    """
    give_up = time.monotonic() + LIMIT_SECONDS
    while not holds():
        if time.monotonic() >= give_up:
            raise TimeoutError(f"waited {LIMIT_SECONDS:g} s for {what}")
        time.sleep(every_seconds)
    return time.monotonic()
