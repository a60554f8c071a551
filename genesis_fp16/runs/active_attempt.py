"""One attempt that the dispatcher has under way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from genesis_fp16.domain.run import Ending, RunState, StopCause
from genesis_fp16.executors import ExitStatus, Handle
from genesis_fp16.runs.attempt_watch import AttemptWatch, Deadlines, attempt_folder
from genesis_fp16.settings.settings import Settings
from genesis_fp16.store import Attempt, Run, RunSummary
from infrastructure.events import PrecisionState


@dataclass(slots=True)
class Work:
    """An attempt under way.

    Attributes:
        run: As it was when the attempt began.
        attempt: Its latest attempt.
        watch: Reads its events.
        handle: Of its worker; None if none could be started.
        told: What its worker was last told on precision.
        cause: Why it was asked to stop; None if it was not.
        kill_at: Monotonic seconds at which its patience ends, once it was asked to stop.
        save_at: Monotonic seconds from which it is to be saved again.
        status: How its worker ended; None while that lives.
        recorded: State of the run in the store, which may lag behind while it fails.
        broken: Why the daemon could not handle it and gave it up; empty if it could.
    """

    run: Run
    attempt: Attempt
    watch: AttemptWatch
    handle: Handle | None = None
    told: PrecisionState | None = None
    cause: StopCause | None = None
    kill_at: float = 0.0
    save_at: float = 0.0
    status: ExitStatus | None = None
    recorded: RunState = RunState.STARTING
    broken: str = ""

    @classmethod
    def on(cls, run: Run, attempt: Attempt, settings: Settings, now: float) -> Work:
        """Take on *attempt*, watched from where it was left; *now* in monotonic seconds."""
        watch = AttemptWatch(
            attempt_folder(settings, attempt) / "events.ndjson",
            RunSummary.of(run),
            Deadlines.of(settings, run.active_seconds),
            now,
            seen_bytes=attempt.events_offset,
        )
        return cls(replace(run, started_at=run.started_at or attempt.started_at), attempt, watch)

    def orphan(self, kill_at: float) -> None:
        """Take it for what the end of its daemon has stopped; *kill_at* as in the attributes."""
        self.cause, self.kill_at = StopCause.ORPHANED, kill_at
        pid, started_at = self.attempt.pid, self.attempt.pid_started_at
        if pid is not None and started_at is not None:
            self.handle = Handle(pid=pid, started_at=started_at)

    def ending(self, status: ExitStatus) -> Ending:
        """What *status* of its worker means for the attempt."""
        exit_code, reported = status.exit_code, self.watch.reported_exit_code
        if exit_code is None and status.signal is None:  # an orphan: nobody waited for it
            exit_code = reported
        elif exit_code == 0 and reported != 0:  # agent code has ended the process by os._exit
            exit_code = 1
        return Ending(exit_code=exit_code, signal=status.signal, cause=self.cause)

    def ended_at(self, folder: Path, now: float) -> float:
        """Unix time of the end: *now*, or when an orphan was last heard of in its *folder*."""
        if self.cause is StopCause.ORPHANED:
            with suppress(FileNotFoundError):
                return (folder / "events.ndjson").stat().st_mtime
        return now
