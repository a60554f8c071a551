"""One attempt under way, as the daemon sees it: its worker, its events, its deadlines."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from genesis_fp16.domain.attempt import Attempt, events_path
from genesis_fp16.domain.run import (
    EXIT_CODES,
    Ending,
    Outcome,
    Run,
    RunState,
    RunSummary,
    StopCause,
)
from genesis_fp16.executors import ExitStatus, Handle
from genesis_fp16.settings import Settings
from infrastructure.events import Event, EventTail, PrecisionState
from infrastructure.events.event import (
    Evaluated,
    Finished,
    PrecisionChanged,
    Published,
    Started,
    StepStats,
)


class AttemptProgress:
    """What the events of one attempt say about it.

    Args:
        path: The attempt's event file; need not exist yet.
        summary: Summary of the run's earlier attempts.
        now: Monotonic seconds at which the attempt began.
        used_seconds: Seconds that earlier attempts have used of the run's deadline.
        seen_bytes: How much of the file an earlier daemon has passed on already.

    Attributes:
        summary: Summary of the run so far.
        tail: Reader of the event file.
        started: Whether the worker has reported that it has started.
        outcome: Outcome that the worker's last event announces; None without one.
    """

    def __init__(
        self,
        path: Path,
        summary: RunSummary,
        settings: Settings,
        now: float,
        *,
        used_seconds: float = 0.0,
        seen_bytes: int = 0,
    ) -> None:
        self.summary = summary
        self.started = False
        self.outcome: Outcome | None = None
        self.tail = EventTail(path)
        self._settings = settings
        self._began_at = self._last_event_at = now
        self._run_deadline = now + max(0.0, settings.run_timeout_seconds - used_seconds)
        self._seen_bytes = seen_bytes

    def read(self, now: float, *, to_end: bool = False) -> Iterator[Event]:
        """Apply the events that have come; yield those that no daemon has passed on before.

        Reads one bounded piece of the file, or all with *to_end*; *now* is in monotonic seconds.
        """
        for event in self.tail.read_to_end() if to_end else self.tail.read():
            self._last_event_at = now
            self._apply(event)
            if self.tail.offset > self._seen_bytes:
                if isinstance(event, StepStats):  # increments, each counted once
                    half_steps = self.summary.half_steps + event.attempted_in_half
                    self.summary = replace(self.summary, half_steps=half_steps)
                yield event

    def overdue(self, now: float) -> StopCause | None:
        """The deadline that has passed by the monotonic time *now*, if one has."""
        if now >= self._run_deadline:
            return StopCause.RUN_TIMEOUT
        if not self.started:
            late = now - self._began_at >= self._settings.start_timeout_seconds
            return StopCause.START_TIMEOUT if late else None
        silent = now - self._last_event_at >= self._settings.no_progress_timeout_seconds
        return StopCause.NO_PROGRESS if silent else None

    def _apply(self, event: Event) -> None:
        match event:
            case Started():
                self.started = True
            case PrecisionChanged():
                state: dict[str, str] = asdict(event.state)
                self.summary = replace(self.summary, precision=state)
            case StepStats():
                self.summary = replace(self.summary, steps=event.step)
            case Evaluated():
                self._set_metrics({**(self.summary.metrics or {}), **event.metrics})
                self.summary = replace(
                    self.summary,
                    primary_metric=event.primary,
                    primary_value=(self.summary.metrics or {}).get(event.primary),
                    higher_is_better=event.higher_is_better,
                )
            case Published():
                self._set_metrics(event.metrics)  # of the model that the decision is about
                self.summary = replace(self.summary, published=event.published, reason=event.reason)
            case Finished():
                self.outcome = event.outcome
                self.summary = replace(self.summary, error=event.error or None)
            case _:
                pass

    def _set_metrics(self, metrics: Mapping[str, float | None]) -> None:
        finite = {k: v if v is not None and math.isfinite(v) else None for k, v in metrics.items()}
        self.summary = replace(self.summary, metrics=finite)


@dataclass(slots=True)
class ActiveAttempt:
    """An attempt under way.

    Attributes:
        run: The run as it was when the attempt began.
        handle: Handle of its worker; None if none could be started.
        sent_precision: The precision last sent to its worker.
        stop_cause: Why it was asked to stop; None if it was not.
        kill_at: Monotonic seconds at which it is killed, once it was asked to stop.
        save_at: Monotonic seconds from which its progress is saved again.
        exit_status: How its worker ended; None while the worker lives.
        recorded_state: State of the run in the store, which lags behind while the store fails.
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
    exit_status: ExitStatus | None = None
    recorded_state: RunState = RunState.STARTING
    daemon_error: str = ""

    @classmethod
    def follow(cls, run: Run, attempt: Attempt, settings: Settings, now: float) -> ActiveAttempt:
        """Follow *attempt* from where an earlier daemon stopped; *now* in monotonic seconds."""
        progress = AttemptProgress(
            events_path(settings.home, attempt),
            RunSummary.of(run),
            settings,
            now,
            used_seconds=run.active_seconds,
            seen_bytes=attempt.events_offset,
        )
        run = replace(run, started_at=run.started_at or attempt.started_at)
        return cls(run, attempt, progress)

    def mark_orphaned(self, kill_at: float) -> None:
        """Treat it as stopped by the end of its daemon; *kill_at* as in the attributes."""
        self.stop_cause, self.kill_at = StopCause.ORPHANED, kill_at
        pid, started_at = self.attempt.pid, self.attempt.pid_started_at
        if pid is not None and started_at is not None:
            self.handle = Handle(pid=pid, started_at=started_at)

    def ending(self, status: ExitStatus) -> Ending:
        """What the *status* of its worker means for the attempt."""
        exit_code, outcome = status.exit_code, self.progress.outcome
        reported = None if outcome is None else EXIT_CODES[outcome]
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
            with suppress(FileNotFoundError):
                return events_path(home, self.attempt).stat().st_mtime
        return now
