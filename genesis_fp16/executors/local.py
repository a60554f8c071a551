"""Workers as child processes of the daemon, each in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors.base import ExitStatus, Handle
from genesis_fp16.system.processes import kill, living_descendants
from infrastructure.events import Command
from infrastructure.events.command import Stop

WORKER_COMMAND = (sys.executable, "-P", "-m", "genesis_fp16.worker")
GROUP_COMMAND = (sys.executable, "-P", "-m", "genesis_fp16.worker.group")
FAMILY_SECONDS = 2.0  # between two looks at what descends from a worker
SAME_START_SECONDS = 2.0  # the kernel counts from boot, and the clock may have been set since


class LocalExecutor:
    """Starts ``command SPEC_PATH`` per attempt: never a thread or a fork of the daemon.

    Args:
        command: The worker's command line without its last argument, the path of the
            specification. An attempt on several ranks is started by `GROUP_COMMAND` instead.
    """

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._command = tuple(command)
        self._children: dict[Handle, _Child] = {}

    def submit(self, spec: RunSpec) -> Handle:
        """Start the worker; its output goes to ``worker.log`` in the attempt's folder.

        Raises:
            OSError: The folder cannot be written, or no process be started.
        """
        path = spec.attempt_folder / "spec.json"
        path.write_text(spec.model_dump_json(indent=2))
        command = self._command if spec.processes_per_run == 1 else GROUP_COMMAND
        with (spec.attempt_folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, str(path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        handle = Handle(pid=process.pid, started_at=_started_at(process.pid))
        self._children[handle] = _Child(process)
        return handle

    def poll(self, handle: Handle) -> ExitStatus | None:
        """How the worker ended, or None while it lives."""
        child = self._children.get(handle)
        if child is None:
            return None if _lives(handle) else ExitStatus()
        child.flush()
        if not child.has_ended():
            child.look_at_family()
            return None
        kill(child.family)  # a worker that ends by itself has; one that was killed cannot
        _kill_group(handle.pid)  # while the zombie still holds the id, it is nobody else's
        status = child.reap()
        del self._children[handle]
        return status

    def send(self, handle: Handle, command: Command) -> None:
        """Write *command* to the worker's stdin, as far as it has room; `poll` writes the rest."""
        child = self._children.get(handle)
        if child is not None:
            child.write(command.model_dump_json().encode() + b"\n")

    def stop(self, handle: Handle, reason: str) -> None:
        """Send `Stop`; an orphan has seen the end of its stdin and stops by itself."""
        self.send(handle, Stop(reason=reason))

    def kill(self, handle: Handle) -> None:
        """End the worker, its descendants and its process group."""
        if not _lives(handle):
            return
        kill(living_descendants(handle.pid))
        _kill_group(handle.pid)

    def recover(self, handle: Handle) -> bool:
        """Whether the worker of an earlier daemon is still alive."""
        return _lives(handle)


class _Child:
    """A process, what is still to be written to it, and what descends from it.

    Attributes:
        family: Its descendants at the last look.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pending = bytearray()
        self.family: list[psutil.Process] = []
        self._look_at = 0.0
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)

    def write(self, line: bytes) -> None:
        self._pending += line
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes without waiting."""
        stdin = self._process.stdin
        if not self._pending or stdin is None:
            return
        try:
            del self._pending[: os.write(stdin.fileno(), self._pending)]
        except BlockingIOError:
            pass  # the worker is busy: later
        except OSError:
            self._pending.clear()  # the worker has closed its stdin: nobody will read this

    def look_at_family(self) -> None:
        """Note its descendants: once it is dead, nothing tells whose they were."""
        if time.monotonic() >= self._look_at:
            self.family = living_descendants(self._process.pid)
            self._look_at = time.monotonic() + FAMILY_SECONDS

    def has_ended(self) -> bool:
        """Whether it has, without reaping it."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def reap(self) -> ExitStatus:
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return ExitStatus(exit_code=code) if code >= 0 else ExitStatus(signal=-code)


def _started_at(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess as error:  # cannot be while it is an unreaped child
        raise ProcessLookupError(f"process {pid} vanished while it was being started") from error


def _lives(handle: Handle) -> bool:
    try:
        process = psutil.Process(handle.pid)
        same = abs(process.create_time() - handle.started_at) < SAME_START_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
