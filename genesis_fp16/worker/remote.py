"""The launcher: runs one attempt on a machine of a cluster, with files for what a parent has.

``python -P -m genesis_fp16.worker.remote SPEC [PARENT_PID]`` starts the usual worker, or the
torchrun group, as a child. It forwards the command file to the worker's stdin, and keeps that stdin
open: the death of the daemon does not end the worker, the next daemon takes it over. See
`genesis_fp16.domain.remote_attempt` for the files, which are on storage that all machines share, or
in a scratch folder that the process PARENT_PID mirrors.

A second start of the same attempt ends at once and changes nothing. When the run's fence names
another attempt, the worker is killed and nothing more is written. SIGTERM, from a person or from
the engine before it takes the machine away, makes the worker checkpoint and stop.

``python -P -m genesis_fp16.worker.remote --probe FOLDER`` reports what this machine has instead.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from genesis_fp16.domain.remote_attempt import (
    CLAIM_FILE,
    COMMANDS_FILE,
    FENCE_FILE,
    HEARTBEAT_FILE,
    KILL_LINE,
    ORDER_FILE,
    RESULT_FILE,
    WORKER_LOG,
    Claim,
    JobOrder,
    Result,
)
from genesis_fp16.domain.run_spec import SPEC_FILE, RunSpec
from genesis_fp16.system.memory_kills import MemoryKills
from genesis_fp16.system.processes import become_subreaper, die_with_parent, kill_descendants
from infrastructure.events import COMMAND_ADAPTER, EventWriter, read_events
from infrastructure.events.command import Stop
from infrastructure.events.event import Finished
from infrastructure.files import write_model

POLL_SECONDS = 0.2  # between two looks at the commands
FENCE_SECONDS = 1.0
HEARTBEAT_SECONDS = 2.0
RESULT_SECONDS = 120.0  # in which the result must find room on the disk
WORKER = (sys.executable, "-P", "-m", "genesis_fp16.worker")
GROUP = (sys.executable, "-P", "-m", "genesis_fp16.worker.group")


def main() -> None:
    """Run the attempt that the file named by the only argument describes, or probe."""
    if sys.argv[1] == "--probe":
        from genesis_fp16.worker.machine_report import write_report

        write_report(Path(sys.argv[2]))
        return
    path = Path(sys.argv[1])
    if len(sys.argv) > 2:  # of the process that mirrors our folder
        die_with_parent(int(sys.argv[2]))
    spec = RunSpec.model_validate_json(path.read_bytes())
    order = JobOrder.model_validate_json(path.with_name(ORDER_FILE).read_bytes())
    if order.incarnation != spec.incarnation or is_fenced_off(spec):
        _say("another attempt has taken this run: nothing is started")
        return
    if not claim(spec):
        _say("this attempt has been started before: nothing is started")
        return
    Launcher(spec, order).run()


def claim(spec: RunSpec) -> bool:
    """Whether this process is the first that starts the attempt."""
    path = spec.attempt_folder / CLAIM_FILE
    record = Claim(
        incarnation=spec.incarnation,
        host=socket.gethostname(),
        pid=os.getpid(),
        claimed_at=time.time(),
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(record.model_dump_json())
    return True


def is_fenced_off(spec: RunSpec) -> bool:
    """Whether the run belongs to another attempt now. While storage fails, nobody knows."""
    try:
        return (spec.run_folder / FENCE_FILE).read_text().strip() != spec.incarnation
    except OSError:
        return False


class Launcher:
    """One worker from its start to its result.

    Attributes:
        stop_reason: Why the worker was asked to stop; empty if it was not.
    """

    def __init__(
        self, spec: RunSpec, order: JobOrder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spec, self._order, self._clock = spec, order, clock
        self._folder = spec.attempt_folder
        self._commands = CommandFile(self._folder / COMMANDS_FILE)
        self._pending = bytearray()
        self._kill_at = self._stop_at = float("inf")
        self._signals: list[str] = []
        self._memory_kills = MemoryKills.now()
        self.stop_reason = ""

    def run(self) -> None:
        """Start the worker, follow it to its end and write the result."""
        become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._note_signal)
        began = self._clock()
        self._stop_at = began + self._order.run_seconds
        self._read_commands()
        if self.stop_reason or not self._kill_at:  # while it waited in the engine's queue
            self._finish(os.EX_TEMPFAIL, None)
            return
        command = self._order.worker or (WORKER if self._spec.processes_per_run == 1 else GROUP)
        parent = os.getpid()
        commands, stdin = os.pipe()
        os.set_blocking(stdin, False)
        try:
            with (self._folder / WORKER_LOG).open("ab") as log:
                worker = subprocess.Popen(
                    [*command, str(self._folder / SPEC_FILE)],
                    stdin=commands,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 -- one thread here
                )
        except OSError as error:
            host = socket.gethostname()
            self._write_result(None, None, f"the worker could not be started on {host}: {error}")
            return
        os.close(commands)
        fenced = self._follow(worker, stdin)
        kill_descendants()
        if fenced:
            _say("another attempt has taken this run: the worker was killed")
            return
        code = worker.wait()
        self._finish(code if code >= 0 else None, -code if code < 0 else None)

    def _follow(self, worker: subprocess.Popen[bytes], stdin: int) -> bool:
        """Until the worker has ended; whether another attempt has taken the run."""
        fence_at = heartbeat_at = 0.0
        while worker.poll() is None:
            now = self._clock()
            if now >= fence_at:
                fence_at = now + FENCE_SECONDS
                if is_fenced_off(self._spec):
                    worker.kill()
                    worker.wait()
                    return True
            if now >= heartbeat_at:
                heartbeat_at = now + HEARTBEAT_SECONDS
                with suppress(OSError):
                    (self._folder / HEARTBEAT_FILE).touch()
            if now >= self._stop_at and not self.stop_reason:
                self._stop("the run's deadline has passed and no daemon has stopped it")
            if self._signals and not self.stop_reason:
                self._stop(self._signals[0])
            self._read_commands()
            self._write_pending(stdin)
            if now >= self._kill_at:
                _say("killing the worker, as the daemon asks or because it has not stopped in time")
                worker.kill()
                worker.wait()
                return False
            time.sleep(POLL_SECONDS)
        return False

    def _read_commands(self) -> None:
        for line in self._commands.read():
            if line == KILL_LINE:
                self._kill_at = 0.0
                continue
            self._pending += line + b"\n"
            with suppress(ValidationError):  # the worker reports a line that is not a command
                command = COMMAND_ADAPTER.validate_json(line)
                if isinstance(command, Stop):
                    self._expect_stop(command.reason)

    def _stop(self, reason: str) -> None:
        _say(f"stopping the worker: {reason}")
        self._pending += Stop(reason=reason).model_dump_json().encode() + b"\n"
        self._expect_stop(reason)

    def _expect_stop(self, reason: str) -> None:
        if not self.stop_reason:
            self.stop_reason = reason
            self._kill_at = min(self._kill_at, self._clock() + self._order.stop_seconds)

    def _write_pending(self, stdin: int) -> None:
        """Write as much as the pipe accepts without waiting."""
        if not self._pending:
            return
        try:
            del self._pending[: os.write(stdin, self._pending)]
        except BlockingIOError:
            pass
        except OSError:
            self._pending.clear()  # the worker has closed its stdin

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(signal.Signals(number).name)

    def _finish(self, exit_code: int | None, number: int | None) -> None:
        """Write the result; a worker that died of the engine's own SIGTERM counts as stopped.

        An engine sends that signal to all processes of a job. A worker that is still importing
        dies of it, without a word.
        """
        early = (self.stop_reason or self._signals) and not self._has_reported()
        if early and (exit_code == os.EX_TEMPFAIL or number == signal.SIGTERM):
            exit_code, number = os.EX_TEMPFAIL, None
            with suppress(OSError), EventWriter(self._spec.events_path) as emit:
                emit(Finished(outcome="stopped", error=""))
        words = ""
        if number == signal.SIGKILL:
            remedy = "raise GENESIS_JOB_MEMORY_MIB, or train smaller batches"
            words = self._memory_kills.explain(MemoryKills.now(), remedy)
        self._write_result(exit_code, number, words)

    def _has_reported(self) -> bool:
        try:
            return any(isinstance(event, Finished) for event in read_events(self._spec.events_path))
        except OSError:
            return False

    def _write_result(self, exit_code: int | None, number: int | None, error: str = "") -> None:
        result = Result(
            incarnation=self._spec.incarnation,
            exit_code=exit_code,
            signal=number,
            error=error,
            host=socket.gethostname(),
            ended_at=time.time(),
        )
        give_up = self._clock() + RESULT_SECONDS
        while not is_fenced_off(self._spec):
            try:
                write_model(self._folder / RESULT_FILE, result)
                return
            except OSError as failure:
                if self._clock() >= give_up:
                    _say(f"the result cannot be written: {failure}")
                    raise
                time.sleep(1.0)


class CommandFile:
    """Complete lines that a file gains; the daemon appends to it from another machine.

    The file is opened for each read: NFS shows another client's writes only then.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[bytes]:
        """Complete lines that are new; none while storage fails."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.splitlines()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
