"""The processes below a worker, ranks and what plugin code starts: none outlives it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

import psutil

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_PATIENCE_SECONDS = 2.0


def keep_orphans() -> None:
    """Stay the ancestor of every descendant, even of one whose own parent ends; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Be killed as soon as the process *parent* is gone, which started this one; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before
        os.kill(os.getpid(), signal.SIGKILL)


def kill_descendants() -> None:
    """Kill all processes that descend from this one, those they start meanwhile included."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while (alive := living_descendants()) and time.monotonic() < give_up:
        kill(alive)
        psutil.wait_procs(alive, timeout=0.1)


def living_descendants(pid: int | None = None) -> list[psutil.Process]:
    """All descendants of *pid*, by default of this process; none where it is gone."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for descendant in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if descendant.status() != psutil.STATUS_ZOMBIE:
                    found.append(descendant)
    return found


def kill(processes: list[psutil.Process]) -> None:
    """Kill each that is still itself: a later process with its id is spared."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
