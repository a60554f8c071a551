"""Waits for processes whose deadlines follow progress, not the clock.

On a crowded machine everything takes longer. So a wait goes on while the processes that the test
has started use the CPU, and is given up when they have been idle for long.
"""

import math
import os
import time
from collections.abc import Callable

import psutil

POLL_SECONDS = 0.02
POLL_SHARE = 0.1  # most of the time that looking takes: what is awaited needs the CPU
MOST_POLL_SECONDS = 1.0  # a first look may take long: it may start servers
LOOK_SECONDS = 5.0  # between two looks at the processes, which are dear
IDLE_SECONDS = 120.0
CROWDING_SAMPLE_SECONDS = 0.02
MOST_SECONDS = 480.0  # below pytest's own timeout, so that the message is ours


def wait_until(
    holds: Callable[[], object],
    what: str = "what the test expects",
    *,
    idle_seconds: float = IDLE_SECONDS,
    most_seconds: float = MOST_SECONDS,
) -> float:
    """Wait until *holds* is true.

    Args:
        holds: Condition; it raises to give up early, for example if a process has ended.
        what: Ending of "waited for ...", for the message.
        idle_seconds: Wait after which to give up if this process's descendants were idle.
        most_seconds: Wait after which to give up in any case.

    Returns:
        Seconds that the wait took.

    Raises:
        AssertionError: *holds* did not become true.
    """
    begun = looked = progressed = time.monotonic()
    used = -math.inf  # most waits are over before the first look
    while True:
        asked = time.monotonic()
        if holds():
            return time.monotonic() - begun
        now = time.monotonic()
        if now - looked > LOOK_SECONDS:
            looked, latest = now, _descendants_cpu_seconds()
            if abs(latest - used) > 0.5:  # less when one of them has ended
                used, progressed = latest, now
        assert now - progressed < idle_seconds, f"waited for {what}: idle for {idle_seconds:.0f} s"
        assert now - begun < most_seconds, f"waited for {what}: not within {most_seconds:.0f} s"
        pause = (now - asked) * (1 / POLL_SHARE - 1)
        time.sleep(min(max(POLL_SECONDS, pause), MOST_POLL_SECONDS))


def crowding() -> float:
    """How many times longer than alone something takes here now; at least 1.

    The load tells of the last minute; what a few milliseconds of computing take tells of now,
    and of a limit that a container has.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    began, used = time.monotonic(), time.thread_time()
    while (computed := time.thread_time() - used) < CROWDING_SAMPLE_SECONDS:
        pass
    return max(1.0, load, (time.monotonic() - began) / computed)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _descendants_cpu_seconds() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
