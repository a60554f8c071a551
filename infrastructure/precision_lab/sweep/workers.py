"""Worker processes, as their sweep sees them: requests, answers, deadlines, ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from infrastructure.files import json_text
from infrastructure.precision_lab.errors import LabError

MODULE = "infrastructure.precision_lab.sweep.worker"
_KILLED_AFTER_SECONDS = 30.0  # beyond a cell's own deadline, which it checks between its steps
_OOM_KILLS = Path("/proc/vmstat")


class WorkerDiedError(LabError):
    """A worker process has ended in the middle of a request.

    Args:
        code: Its exit code; negative if a signal ended it.
        timed_out: Whether the sweep has killed it for taking too long.
        out_of_memory: Whether it was killed while the kernel killed for lack of memory.
    """

    def __init__(self, code: int, *, timed_out: bool, out_of_memory: bool) -> None:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        super().__init__(f"the worker process has ended with {how}; see workers.log")
        self.timed_out, self.out_of_memory = timed_out, out_of_memory


class RefusedError(LabError):
    """A worker cannot do a request; the sweep ends."""


class Worker:
    """A process that runs cells, started at its first request and again after it has died.

    Args:
        settings: Settings of the cells, by name.
        log: File to which its standard error is appended.
        lock: Descriptor of the sweep's lock, which the process inherits.
        cell_seconds: Deadline of a cell.
    """

    def __init__(
        self, settings: Mapping[str, Any], log: Path, lock: int, cell_seconds: float
    ) -> None:
        self._settings, self._log, self._lock = settings, log, lock
        self._limit = cell_seconds + _KILLED_AFTER_SECONDS
        self._process: subprocess.Popen[str] | None = None
        self._stopped, self._timed_out = False, False
        self._guard = threading.Lock()

    def ask(
        self, request: Mapping[str, object], on_step: Callable[[int], None] = lambda _: None
    ) -> Any:  # noqa: ANN401  # what the request asks for
        """Send *request* and wait for its answer.

        Raises:
            WorkerDiedError: The process has ended.
            RefusedError: It cannot do that.
        """
        process, kills = self._started(), _kernel_kills()
        self._timed_out = False
        watchdog = threading.Timer(self._limit, self._time_out)
        watchdog.daemon = True
        watchdog.start()
        try:
            with suppress(BrokenPipeError):
                self._send(process, request)
            for line in cast("IO[str]", process.stdout):
                answer = json.loads(line)
                if "step" in answer:
                    on_step(answer["step"])
                elif "refused" in answer:
                    raise RefusedError(answer["refused"])
                else:
                    return answer["done"]
        finally:
            watchdog.cancel()
        with self._guard:
            self._process = None
        code = _ended(process)
        killed = code == -signal.SIGKILL and not self._timed_out
        raise WorkerDiedError(
            code, timed_out=self._timed_out, out_of_memory=killed and _kernel_kills() > kills
        )

    def stop(self) -> None:
        """Kill the process, also in the middle of a request, and start no other."""
        with self._guard:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def wait(self) -> None:
        """Wait until a stopped process has ended."""
        if self._process is not None:
            _ended(self._process)

    def _started(self) -> subprocess.Popen[str]:
        with self._guard:
            if self._stopped:
                raise RefusedError("the sweep was stopped")
            if self._process is None:
                with self._log.open("a") as log:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-m", MODULE],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        pass_fds=(self._lock,),
                    )
                with suppress(BrokenPipeError):
                    self._send(self._process, self._settings)
            return self._process

    def _send(self, process: subprocess.Popen[str], content: Mapping[str, object]) -> None:
        stream = cast("IO[str]", process.stdin)
        stream.write(json_text(content) + "\n")
        stream.flush()

    def _time_out(self) -> None:
        with self._guard:
            self._timed_out = True
            if self._process is not None:
                self._process.kill()


def _ended(process: subprocess.Popen[str]) -> int:
    """Wait until *process* has ended; close its pipes and return its exit code."""
    code = process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # what it has not read is flushed
            cast("IO[str]", stream).close()
    return code


def _kernel_kills() -> int:
    """Processes that the kernel has killed for lack of memory since its start; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in _OOM_KILLS.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
