"""A pool of worker processes: each does one task after another, and its death costs one task."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from infrastructure.precision_lab.failures import FailureKind
from infrastructure.precision_lab.ppo.settings import CellSettings
from infrastructure.precision_lab.sweep.cell_run import RefusedError, Task

Key = TypeVar("Key")
MODULE = "infrastructure.precision_lab.sweep.worker"
_KILLED_AFTER_SECONDS = 30.0  # beyond a cell's own deadline, which it checks between its steps
_TICK_SECONDS = 1.0
_KERNEL_COUNTERS = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True)
class Death:
    """Why a task has ended without a result, and after how many seconds."""

    category: str
    reason: str
    seconds: float


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    task_began: float = 0.0
    kernel_kills: int = 0  # when the task began


class WorkerPool:
    """Worker processes, each started when a task needs it and replaced after its death.

    Args:
        size: Number of processes.
        settings: Settings of the cells.
        log: File to which the processes append what they print.
        lock: Descriptor of the sweep's lock, which the processes inherit.
    """

    def __init__(self, size: int, settings: CellSettings, log: Path, lock: int) -> None:
        self._size, self._settings, self._log, self._lock = size, settings, log, lock
        self._limit = settings.timeout_seconds + _KILLED_AFTER_SECONDS
        self._idle: list[_Worker] = []
        self._running: dict[Any, _Worker] = {}

    def run(
        self, tasks: Mapping[Key, Task], on_step: Callable[[Key, int], None] = lambda _, __: None
    ) -> Iterator[tuple[Key, Any]]:
        """Do each of *tasks*; yield its key with its result, or with its worker's `Death`.

        Args:
            tasks: Tasks by key.
            on_step: Called with the key of a cell and the number of an update that it has made.

        Raises:
            RefusedError: A worker cannot do its task.
        """
        waiting = deque(tasks)
        while waiting or self._running:
            while waiting and len(self._running) < self._size:
                worker = self._idle.pop() if self._idle else self._start()
                worker.task_began, worker.kernel_kills = time.monotonic(), _kernel_kills()
                self._running[waiting[0]] = worker
                with suppress(OSError):  # it has died, and so its answers end
                    worker.connection.send((tasks[waiting.popleft()], self._settings))
            for key, worker in self._answering():
                try:
                    answer = worker.connection.recv()
                except (EOFError, OSError):
                    answer = self._death(worker)
                if isinstance(answer, RefusedError):
                    raise answer
                if isinstance(answer, int):
                    on_step(key, answer)
                    continue
                del self._running[key]
                if not isinstance(answer, Death):
                    self._idle.append(worker)
                yield key, answer

    def close(self) -> dict[Any, float]:
        """Kill the processes; return the keys of unfinished tasks, each with its seconds."""
        for worker in [*self._idle, *self._running.values()]:
            worker.process.kill()
            worker.process.wait()
            worker.connection.close()
        now = time.monotonic()
        seconds = {key: now - worker.task_began for key, worker in self._running.items()}
        self._idle, self._running = [], {}
        return seconds

    def _start(self) -> _Worker:
        ours, theirs = Pipe()
        with self._log.open("a") as log, theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), self._lock),
            )
        return _Worker(process, ours)

    def _answering(self) -> list[tuple[Any, _Worker]]:
        """Workers that have sent something or died, by key; kills those that take too long."""
        ready = wait([worker.connection for worker in self._running.values()], _TICK_SECONDS)
        for worker in self._running.values():
            if time.monotonic() - worker.task_began >= self._limit:
                worker.process.kill()
        return [
            (key, worker) for key, worker in self._running.items() if worker.connection in ready
        ]

    def _death(self, worker: _Worker) -> Death:
        worker.connection.close()
        code, seconds = worker.process.wait(), time.monotonic() - worker.task_began
        if seconds >= self._limit:
            reason = f"no end after {self._settings.timeout_seconds:.0f} s; killed"
            return Death(FailureKind.TIMEOUT, reason, seconds)
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        reason = f"the worker process has ended with {how}; see workers.log"
        if code == -signal.SIGKILL and _kernel_kills() > worker.kernel_kills:
            reason += ": the kernel was killing processes for lack of memory"
            return Death(FailureKind.OUT_OF_MEMORY, reason, seconds)
        return Death(FailureKind.UNKNOWN, reason, seconds)


def _kernel_kills() -> int:
    """Processes that the kernel has killed to free memory since its start; 0 if unknown."""
    try:
        count = re.search(r"^oom_kill (\d+)$", _KERNEL_COUNTERS.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 0 if count is None else int(count[1])
