"""Process trees: no descendant outlives the process that this module is used in."""

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


def become_subreaper() -> None:
    """Stay the ancestor of every descendant, even of one whose parent ends; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, the process *parent*, ends; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, 0, 0, 0, 0)


def kill_descendants() -> None:
    """Kill all descendants of this process, including those that start meanwhile."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while (alive := living_descendants()) and time.monotonic() < give_up:
        kill(alive)
        psutil.wait_procs(alive, timeout=0.1)


def living_descendants(pid: int | None = None) -> list[psutil.Process]:
    """All descendants of *pid* (default: this process); none if that process has ended."""
    living = []
    with suppress(psutil.NoSuchProcess):
        for descendant in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if descendant.status() != psutil.STATUS_ZOMBIE:
                    living.append(descendant)
    return living


def started_with(variable: str, value: str) -> list[psutil.Process]:
    """All processes, of any parent, that inherited the environment *variable* with this *value*."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has ended, or belongs to another user
            if process.environ().get(variable) == value:
                processes.append(process)
    return processes


def kill(processes: list[psutil.Process]) -> None:
    """Kill each process, but not a later one that has been given its id."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
