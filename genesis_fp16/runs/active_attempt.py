"""One attempt under way, as the daemon sees it: its worker, its events, its deadlines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from genesis_fp16.domain.attempt import Attempt, attempt_folder
from genesis_fp16.domain.run import EXIT_CODES, Ending, Run, RunState, RunSummary, StopCause
from genesis_fp16.executors import ExitStatus, Handle
from genesis_fp16.settings.settings import Settings
from infrastructure.events import Event, EventTail, PrecisionState
from infrastructure.events.event import (
    Evaluated,
    Finished,
    PrecisionChanged,
    Published,
    Started,
    StepStats,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """Seconds an attempt has.

    Attributes:
        start: Until it reports that it is up.
        no_progress: From one event to the next.
        run: In all; less than the run has where earlier attempts used some.
        stop: From being asked to stop until it is killed.
    """

    start: float
    no_progress: float
    run: float
    stop: float

    @classmethod
    def of(cls, settings: Settings, used_seconds: float) -> Deadlines:
        """Those of *settings*, for a run that has used *used_seconds* already."""
        return cls(
            start=settings.start_timeout_seconds,
            no_progress=settings.no_progress_timeout_seconds,
            run=max(0.0, settings.run_timeout_seconds - used_seconds),
            stop=settings.stop_timeout_seconds,
        )


class AttemptWatch:
    """Reads the events of one attempt.

    Args:
        events_path: The attempt's event file; need not exist yet.
        summary: What the run has to show from earlier attempts.
        deadlines: See `Deadlines`.
        now: Monotonic seconds at which the attempt began.
        seen_bytes: How much of the file an earlier daemon has passed on already.

    Attributes:
        summary: What the run has to show now.
        started: Whether the worker has reported that it is up.
        reported_exit_code: What the worker announced last; None if it could not.
    """

    def __init__(
        self,
        events_path: Path,
        summary: RunSummary,
        deadlines: Deadlines,
        now: float,
        seen_bytes: int = 0,
    ) -> None:
        self.summary = summary
        self.started = False
        self.reported_exit_code: int | None = None
        self._tail = EventTail(events_path)
        self._deadlines = deadlines
        self._begun = self._last_sign = now
        self._seen_bytes = seen_bytes

    @property
    def offset(self) -> int:
        """Bytes of the event file that were read."""
        return self._tail.offset

    @property
    def malformed(self) -> int:
        """Lines that were no event."""
        return self._tail.malformed

    def read(self, now: float) -> list[Event]:
        """Take in the events that have come; return those not passed on before."""
        new = []
        for event in self._tail.read():
            self._last_sign = now
            self._take(event)
            if self._tail.offset > self._seen_bytes:
                self._count(event)
                new.append(event)
        return new

    def overdue(self, now: float) -> StopCause | None:
        """The deadline that has passed by the monotonic time *now*, if one has."""
        if now - self._begun >= self._deadlines.run:
            return StopCause.RUN_TIMEOUT
        if not self.started:
            late = now - self._begun >= self._deadlines.start
            return StopCause.START_TIMEOUT if late else None
        silent = now - self._last_sign >= self._deadlines.no_progress
        return StopCause.NO_PROGRESS if silent else None

    def _take(self, event: Event) -> None:
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
                self._set_metrics(event.metrics)  # of the model decided about, perhaps no late one
                self.summary = replace(self.summary, published=event.published, reason=event.reason)
            case Finished():
                self.reported_exit_code = EXIT_CODES[event.outcome]
                self.summary = replace(self.summary, error=event.error or None)
            case _:
                pass

    def _count(self, event: Event) -> None:
        """Add up what an event tells as an increment; each is counted once."""
        if isinstance(event, StepStats) and event.precision != "fp32":
            half_steps = self.summary.half_steps + event.attempted
            self.summary = replace(self.summary, half_steps=half_steps)

    def _set_metrics(self, metrics: Mapping[str, float | None]) -> None:
        finite = {k: v if v is not None and math.isfinite(v) else None for k, v in metrics.items()}
        self.summary = replace(self.summary, metrics=finite)


@dataclass(slots=True)
class ActiveAttempt:
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
    def on(cls, run: Run, attempt: Attempt, settings: Settings, now: float) -> ActiveAttempt:
        """Take on *attempt*, watched from where it was left; *now* in monotonic seconds."""
        watch = AttemptWatch(
            attempt_folder(settings.home, attempt) / "events.ndjson",
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
