"""A pool of worker processes: each does one task after another, and its death costs one task."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar, cast

from infrastructure.files import json_text
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.ppo.settings import CellSettings

Task = TypeVar("Task")
MODULE = "infrastructure.precision_lab.sweep.worker"
_KILLED_AFTER_SECONDS = 30.0  # beyond a cell's own deadline, which it checks between its steps
_TICK_SECONDS = 0.05
_KERNEL_COUNTERS = Path("/proc/vmstat")


class WorkerDiedError(LabError):
    """A worker process has ended in the middle of a request.

    Args:
        code: Its exit code; negative if a signal ended it.
        timed_out: Whether the pool has killed it because it took too long.
        out_of_memory: Whether it was killed while the kernel killed processes to free memory.
    """

    def __init__(self, code: int, *, timed_out: bool, out_of_memory: bool) -> None:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        super().__init__(f"the worker process has ended with {how}; see workers.log")
        self.timed_out, self.out_of_memory = timed_out, out_of_memory


class RefusedError(LabError):
    """A worker cannot do a request; the sweep ends."""


class WorkerPool:
    """Worker processes, each started at its first request and replaced after its death.

    Args:
        size: Number of processes.
        settings: Settings of the cells.
        log: File to which the processes append their standard error.
        lock: Descriptor of the sweep's lock, which the processes inherit.

    Attributes:
        stopped_by: The exception that has ended `run` early, or None.
    """

    def __init__(self, size: int, settings: CellSettings, log: Path, lock: int) -> None:
        self._size, self._settings, self._log, self._lock = size, settings, log, lock
        self._limit = settings.timeout_seconds + _KILLED_AFTER_SECONDS
        self._idle = SimpleQueue[subprocess.Popen[str] | None]()  # None is one not yet started
        for _ in range(size):
            self._idle.put(None)
        self._processes: list[subprocess.Popen[str]] = []
        self.stopped_by: BaseException | None = None

    def run(self, do: Callable[[Task], None], tasks: Sequence[Task]) -> None:
        """Call *do*, which calls `ask`, with each of *tasks*, in a thread for each process.

        The first exception, a `KeyboardInterrupt` too, kills all processes and is raised.
        """
        with ThreadPoolExecutor(self._size) as threads:
            futures = [threads.submit(do, task) for task in tasks]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException as error:
                self.stopped_by = error
                for future in futures:
                    future.cancel()
                while any(future.running() for future in futures):
                    self._kill()
                    time.sleep(_TICK_SECONDS)
                raise

    def ask(
        self, request: Mapping[str, object], on_step: Callable[[int], None] = lambda _: None
    ) -> Any:  # noqa: ANN401  # what the request asks for
        """Send *request* to an idle process and wait for its answer.

        Raises:
            WorkerDiedError: The process has ended.
            RefusedError: It cannot do that.
        """
        process, kills = self._idle.get() or self._start(), _kernel_kills()
        deadline = time.monotonic() + self._limit
        watchdog = threading.Timer(self._limit, process.kill)
        watchdog.start()
        answered = False
        try:
            _send(process, request)
            for line in cast("IO[str]", process.stdout):
                answer = json.loads(line)
                if "step" in answer:
                    on_step(answer["step"])
                    continue
                answered = True
                if "refused" in answer:
                    raise RefusedError(answer["refused"])
                return answer["done"]
        finally:
            watchdog.cancel()
            self._idle.put(process if answered else None)
        code, timed_out = process.wait(), time.monotonic() >= deadline
        killed = code == -signal.SIGKILL and not timed_out
        raise WorkerDiedError(
            code, timed_out=timed_out, out_of_memory=killed and _kernel_kills() > kills
        )

    def close(self) -> None:
        """Kill the processes, and wait until they have ended."""
        self._kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):  # the rest of a request is flushed
                    cast("IO[str]", stream).close()

    def _kill(self) -> None:
        for process in list(self._processes):
            process.kill()

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=(self._lock,),
            )
        self._processes.append(process)
        _send(process, self._settings.as_dict())
        return process


def _send(process: subprocess.Popen[str], content: Mapping[str, object]) -> None:
    stream = cast("IO[str]", process.stdin)
    with suppress(BrokenPipeError):  # it has died, and so its output ends
        stream.write(json_text(content) + "\n")
        stream.flush()


def _kernel_kills() -> int:
    """Processes that the kernel has killed to free memory since its start; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in _KERNEL_COUNTERS.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
