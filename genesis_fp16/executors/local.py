"""Workers as child processes of the daemon, each in its own session."""

from __future__ import annotations

import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import structlog

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.run_spec import SPEC_FILE, RunSpec
from genesis_fp16.executors.base import ExitStatus, Handle
from genesis_fp16.executors.job_files import read_order, revoke
from genesis_fp16.executors.spare import SPARE_COMMAND, SpareWorker
from genesis_fp16.settings.source import child_environment
from genesis_fp16.system.memory_kills import MemoryKills
from genesis_fp16.system.permissions import write_private
from genesis_fp16.system.processes import kill, living_descendants, started_with
from infrastructure.events import Command
from infrastructure.events.command import Lease

WORKER_COMMAND = (sys.executable, "-P", "-m", "genesis_fp16.worker")
GROUP_COMMAND = (sys.executable, "-P", "-m", "genesis_fp16.worker.group")
WORKER_VARIABLE = "_GENESIS_WORKER"  # in the environment of a worker and of its descendants
DESCENDANTS_SECONDS = 2.0  # between two listings of a worker's descendants
SAME_START_SECONDS = 2.0  # tolerance: start times shift when the clock is set
SPARE_RETRY_SECONDS = 60.0  # after a spare worker has failed

log = structlog.get_logger()


class LocalExecutor:
    """Starts ``command SPEC_PATH`` for each attempt, never a thread or a fork of the daemon.

    Args:
        command: The worker's command line without its last argument, the path of the
            specification. For an attempt on several ranks `GROUP_COMMAND` takes its place.
        spare_command: The command line of a spare worker; see `SpareWorker`.

    Attributes:
        spare: Worker that waits for an attempt; None if there is none.
    """

    def __init__(
        self, command: Sequence[str] = WORKER_COMMAND, spare_command: Sequence[str] = SPARE_COMMAND
    ) -> None:
        self._command, self._spare_command = tuple(command), tuple(spare_command)
        self._children: dict[Handle, _Child] = {}
        self._lease = b""  # the last one, as a line; see `Lease`
        self.spare: SpareWorker | None = None
        self._spare_at = -math.inf  # when the next may start, in monotonic seconds

    def submit(self, spec: RunSpec) -> Handle:
        """Start the worker; its output goes to ``worker.log`` in the attempt's folder.

        Raises:
            OSError: The folder cannot be written, or the process cannot be started.
        """
        path = spec.attempt_folder / SPEC_FILE
        write_private(path, spec.model_dump_json(indent=2))  # its settings may be secret
        output = spec.attempt_folder / "worker.log"
        output.open("ab").close()
        is_one_process = spec.processes_per_run == 1
        child = self._take_spare(spec, output) if is_one_process else None
        if child is None:
            token = secrets.token_hex(16)
            with output.open("ab") as file:
                process = subprocess.Popen(
                    [*(self._command if is_one_process else GROUP_COMMAND), str(path)],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=child_environment({WORKER_VARIABLE: token}),
                )
            child = _Child(process, token)
        handle = Handle(pid=child.pid, started_at=_started_at(child.pid))
        self._children[handle] = child
        if self._lease:
            child.write(self._lease)
        return handle

    def trouble_seconds(self) -> float:
        """0: there is no cluster."""
        return 0.0

    def unreachable(self, handle: Handle) -> str:
        """Nothing stands between the worker's files and the daemon."""
        del handle
        return ""

    def keep_spare(self, wanted: bool) -> None:
        """Start a spare worker if one is *wanted* and there is none; end it if none is wanted.

        Call it often, from a thread that lives as long as this process: the spare ends with it.
        """
        if self.spare is not None:
            if not wanted:
                self._end_spare("no spare worker is wanted")
            elif failure := self.spare.failure:
                self._spare_at = time.monotonic() + SPARE_RETRY_SECONDS
                log.warning("spare_failed", error=failure, retry_after_seconds=SPARE_RETRY_SECONDS)
                self._end_spare(failure)
        elif wanted and time.monotonic() >= self._spare_at:
            try:
                self.spare = SpareWorker(WORKER_VARIABLE, self._spare_command)
            except OSError as error:
                self._spare_at = time.monotonic() + SPARE_RETRY_SECONDS
                retry = {"retry_after_seconds": SPARE_RETRY_SECONDS}
                log.warning("spare_failed", error=str(error), **retry)

    def _take_spare(self, spec: RunSpec, output: Path) -> _Child | None:
        """Make the spare worker that of an attempt; None if it cannot be used."""
        spare = self.spare
        if spare is None or not spare.is_ready():
            return None
        if reason := spare.failure or spare.outdated():
            self._end_spare(reason)
        elif not spare.hand_over(spec.attempt_folder / SPEC_FILE, output):
            self._end_spare("it has ended")
        else:
            self.spare = None
            log.info("spare_used", agent=spec.agent, run_id=spec.run_id, pid=spare.process.pid)
            return _Child(spare.process, spare.token)
        return None

    def _end_spare(self, reason: str) -> None:
        if self.spare is not None:
            log.info("spare_discarded", pid=self.spare.process.pid, reason=reason)
            self.spare.end()
            self.spare = None

    def poll(self, handle: Handle) -> ExitStatus | None:
        """How the worker ended, or None while it lives."""
        child = self._children.get(handle)
        if child is None:
            return None if _is_alive(handle) else ExitStatus()
        child.flush()
        if not child.has_ended():
            child.list_descendants()
            return None
        kill(child.descendants)  # a worker that was killed could not kill them itself
        kill(started_with(WORKER_VARIABLE, child.token))  # those started since then
        _kill_group(handle.pid)  # before reaping: the zombie still reserves the id
        del self._children[handle]
        return child.reap()

    def send(self, handle: Handle, command: Command) -> None:
        """Write *command* to the worker's stdin without waiting; `poll` writes what is left."""
        child = self._children.get(handle)
        if child is not None:
            child.write(command.model_dump_json().encode() + b"\n")

    def extend_lease(self, until: float) -> None:
        """See `Executor`; workers that start later get it, too."""
        self._lease = Lease(lease_until=until).model_dump_json().encode() + b"\n"
        for child in list(self._children.values()):
            child.write(self._lease)

    def kill(self, handle: Handle) -> bool:
        """End the worker, its descendants and its process group; False if it has ended."""
        if not _is_alive(handle):
            return False
        kill(living_descendants(handle.pid))
        _kill_group(handle.pid)
        return True

    def find(self, folder: Path) -> Handle | None:
        """None: jobs of an engine cannot be followed from here.

        A daemon with another ``GENESIS_EXECUTOR`` may have left one; it is told to end.
        """
        if (order := read_order(folder)) is not None:
            consequence = "it ends without another trace; the run goes on from its last checkpoint"
            log.warning("job_given_up", job=order.job, engine=order.engine, consequence=consequence)
            revoke(folder)
        return None

    def end_foreign(self, agent: str, attempt: Attempt, folder: Path) -> Handle | None:
        """None: no engine can be asked from here; the log names a job that goes on."""
        del folder
        if attempt.job is not None:
            consequence = "it trains on, and the run starts over here"
            remedy = "end it with the cluster's own tools; set one GENESIS_EXECUTOR for all daemons"
            fields = {"agent": agent, "job": attempt.job}
            log.warning("job_not_ended", **fields, consequence=consequence, remedy=remedy)
        return None

    def recover(self, handle: Handle) -> bool:
        """Whether the worker of an earlier daemon is still alive."""
        return _is_alive(handle)

    def waiting(self, handle: Handle) -> str:
        """Empty: a process starts at once."""
        del handle
        return ""

    def close(self) -> None:
        """End the spare worker."""
        self.keep_spare(wanted=False)


class _Child:
    """A process, the commands still to be written to it, and its descendants.

    Attributes:
        token: Value of `WORKER_VARIABLE` in its environment.
        descendants: As last listed; some may have replaced their environment.
    """

    def __init__(self, process: subprocess.Popen[bytes], token: str) -> None:
        self._process, self.token = process, token
        self._memory_kills = MemoryKills.now()
        self.pid = process.pid
        self._pending = bytearray()
        self._writing = threading.Lock()
        self.descendants: list[psutil.Process] = []
        self._list_at = 0.0
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)

    def write(self, line: bytes) -> None:
        with self._writing:
            self._pending += line
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe accepts without waiting."""
        stdin = self._process.stdin
        with self._writing:
            if not self._pending or stdin is None or stdin.closed:
                return
            try:
                del self._pending[: os.write(stdin.fileno(), self._pending)]
            except BlockingIOError:
                pass  # the pipe is full: `poll` tries again
            except OSError:
                self._pending.clear()  # the worker has closed its stdin

    def list_descendants(self) -> None:
        """List the descendants now: after the death of the process they cannot be found."""
        if time.monotonic() >= self._list_at:
            self.descendants = living_descendants(self._process.pid)
            self._list_at = time.monotonic() + DESCENDANTS_SECONDS

    def has_ended(self) -> bool:
        """Whether the process has ended; does not reap it."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def reap(self) -> ExitStatus:
        code = self._process.wait()
        if self._process.stdin is not None:
            with self._writing:
                self._process.stdin.close()
        if code >= 0:
            return ExitStatus(exit_code=code)
        words = ""
        if -code == signal.SIGKILL:
            remedy = "give the daemon's unit or machine more memory, or train smaller batches"
            words = self._memory_kills.explain(MemoryKills.now(), remedy)
        return ExitStatus(signal=-code, error=words)


def _started_at(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess as error:  # should not happen: an unreaped child keeps its id
        raise ProcessLookupError(f"process {pid} vanished while it was being started") from error


def _is_alive(handle: Handle) -> bool:
    try:
        process = psutil.Process(handle.pid)
        same = abs(process.create_time() - handle.started_at) < SAME_START_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
