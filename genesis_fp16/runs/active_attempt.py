"""One attempt under way, as the daemon sees it: its worker, what it was told, how it ended."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from genesis_fp16.domain.attempt import Attempt, events_path
from genesis_fp16.domain.run import (
    EXIT_CODES,
    Ending,
    Run,
    RunState,
    RunSummary,
    StopCause,
)
from genesis_fp16.executors import ExitStatus, Handle
from genesis_fp16.runs.attempt_progress import LONGEST_BACKLOG, AttemptProgress
from genesis_fp16.settings import Settings
from infrastructure.events import EventTail, PrecisionState


@dataclass(slots=True)
class ActiveAttempt:
    """An attempt under way.

    Attributes:
        run: The run as it was when the attempt began.
        attempt: The attempt, with what its job waits for.
        progress: What its events say.
        handle: Handle of its worker; None if none could be started.
        sent_precision: The precision last sent to its worker.
        stop_cause: Why it was asked to stop; None if it was not.
        kill_at: Monotonic seconds at which it is killed, once it was asked to stop.
        save_at: Monotonic seconds from which its progress is saved again.
        read_at: Monotonic seconds at which its events were last read.
        saved_offset: How far its events were read when its progress was last saved.
        exit_status: How its worker ended; None while the worker lives.
        recorded_state: State of the run in the store, which lags behind while the store fails.
        asked_at: Monotonic seconds at which it was last asked whether its job waits.
        unreadable: Why its events cannot be read at present; empty if they can.
        daemon_error: Error of the daemon that made it give the attempt up; empty without one.
    """

    run: Run
    attempt: Attempt
    progress: AttemptProgress
    handle: Handle | None = None
    sent_precision: PrecisionState | None = None
    stop_cause: StopCause | None = None
    kill_at: float = 0.0
    save_at: float = 0.0
    read_at: float = -math.inf
    saved_offset: int = 0
    exit_status: ExitStatus | None = None
    recorded_state: RunState = RunState.STARTING
    asked_at: float = math.inf
    unreadable: str = ""
    daemon_error: str = ""

    @classmethod
    def follow(
        cls,
        run: Run,
        attempt: Attempt,
        settings: Settings,
        now: float,
        *,
        age_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> ActiveAttempt:
        """Follow *attempt* from where an earlier daemon stopped.

        *now* and the *clock* are in monotonic seconds; *age_seconds* have passed since it began.
        """
        offset = attempt.events_offset
        path = events_path(settings.home, attempt)
        summary = RunSummary.of(run)
        reported = next((code for code in EXIT_CODES if code == attempt.ending), None)
        progress = AttemptProgress(
            EventTail(path, offset, longest_backlog=LONGEST_BACKLOG, clock=clock),
            summary if reported is None else replace(summary, error=run.error),
            settings,
            now,
            used_seconds=run.active_seconds,
            age_seconds=age_seconds,
        )
        progress.outcome = reported
        run = replace(run, started_at=run.started_at or attempt.started_at)
        return cls(run, attempt, progress, saved_offset=offset)

    @property
    def run_so_far(self) -> Run:
        """The run with what its worker has reported that decides its precision."""
        return replace(self.run, fell_back_at=self.progress.summary.fell_back_at)

    @property
    def worker_columns(self) -> dict[str, float | str | None]:
        """Columns of its row that tell its worker, and what that waits for."""
        if self.handle is None:
            return {}
        waiting = {"waiting": self.waiting or self.unreadable or None}
        if self.handle.job:
            waited = {"waited_seconds": self.attempt.waited_seconds}
            return {"job": self.handle.job, **waiting, **waited}
        pid = {"pid": self.handle.pid, "pid_started_at": self.handle.started_at}
        return {**pid, **waiting}

    @property
    def waiting(self) -> str:
        """What its job waits for before it starts; empty if it does not wait."""
        return self.attempt.waiting or ""

    def wait(self, reason: str, seconds: float, now: float) -> None:
        """Record that its job waits for *reason*, or, if empty, that it does not.

        No deadline counts the *seconds* since the last call of a job that waits; *now* is in
        monotonic seconds.
        """
        waited = self.attempt.waited_seconds
        if reason:
            waited += seconds
            self.progress.postpone(seconds, now)
        self.attempt = replace(self.attempt, waiting=reason or None, waited_seconds=waited)

    def adopt(self, handle: Handle) -> None:
        """Go on with a worker that has outlived its daemon; its deadlines begin again."""
        self.handle = handle
        self.progress.started = self.run.state is not RunState.STARTING

    @property
    def stuck(self) -> bool:
        """Whether the worker has ended, and what it had written cannot be read at present."""
        return self.exit_status is not None and bool(self.unreadable)

    @property
    def over(self) -> bool:
        """Whether the worker has ended and all that it had written by then has been read.

        What cannot be read is not waited for after a cancellation or the run's own deadline.
        """
        hopeless = self.stuck and self.stop_cause in (StopCause.CANCEL, StopCause.RUN_TIMEOUT)
        return self.exit_status is not None and (hopeless or not self.progress.tail.behind)

    @property
    def unsaved_bytes(self) -> int:
        """Bytes of events read since its progress was last saved."""
        return self.progress.tail.offset - self.saved_offset

    def end(self, status: ExitStatus) -> None:
        """Record that the worker has ended; what is still to be read ends here too."""
        self.exit_status = status
        self.attempt = replace(self.attempt, waiting=None)
        self.progress.tail.end_here()

    def mark_orphaned(self, kill_at: float) -> None:
        """Treat it as stopped by the end of its daemon; *kill_at* as in the attributes."""
        self.stop_cause, self.kill_at = StopCause.ORPHANED, kill_at
        pid, started_at = self.attempt.pid, self.attempt.pid_started_at
        if pid is not None and started_at is not None:
            self.handle = Handle(pid=pid, started_at=started_at)

    def ending(self, status: ExitStatus) -> Ending:
        """What the *status* of its worker means for the attempt."""
        outcome = self.progress.outcome
        reported = None if outcome is None else EXIT_CODES[outcome]
        exit_code = status.exit_code
        if exit_code is None and status.signal is None:  # an orphan is not our child to wait for
            exit_code = reported
        elif exit_code == 0 and reported != 0:  # agent code has ended the process by os._exit
            exit_code = 1
        disk_full = exit_code == os.EX_TEMPFAIL and outcome in (None, "disk_full")
        return Ending(
            exit_code=exit_code,
            signal=status.signal,
            cause=self.stop_cause,
            disk_full=disk_full,
        )

    def ended_at(self, home: Path, now: float) -> float:
        """Unix time of the end: *now*, or of an orphan's last event below *home*."""
        if self.stop_cause is StopCause.ORPHANED:
            with suppress(OSError):
                return min(now, events_path(home, self.attempt).lstat().st_mtime)
        return now
