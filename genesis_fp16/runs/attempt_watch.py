"""One attempt as the daemon sees it: its specification, its events, its deadlines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from genesis_fp16.domain.run import EXIT_CODES, StopCause
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.settings.settings import Settings
from genesis_fp16.store import Attempt, Run, RunSummary
from infrastructure.events import Event, EventTail, PrecisionState
from infrastructure.events.event import (
    Evaluated,
    Finished,
    PrecisionChanged,
    Published,
    Started,
    StepStats,
)


def attempt_folder(settings: Settings, attempt: Attempt) -> Path:
    """Where the attempt's specification, events and log lie."""
    runs = settings.home.absolute() / "runs"
    return runs / attempt.run_id / "attempts" / str(attempt.number)


def make_spec(
    settings: Settings, run: Run, attempt: Attempt, entry_point: str, precision: PrecisionState
) -> RunSpec:
    """Everything the worker of *attempt* needs to know."""
    folder, own = attempt_folder(settings, attempt), settings.for_agent(run.agent)
    return RunSpec(
        run_id=run.id,
        attempt=attempt.number,
        incarnation=attempt.incarnation,
        agent=run.agent,
        entry_point=entry_point,
        run_folder=folder.parents[1],
        repeats=None if run.baseline_of is None else folder.parents[2] / run.baseline_of,
        attempt_folder=folder,
        seed=run.seed,
        precision=precision,
        processes_per_run=own.processes_per_run,
        parallel=own.parallel,
        **spec_of_settings(settings, run.agent),
    )


def spec_of_settings(settings: Settings, agent: str) -> dict[str, Any]:
    """The fields of a `RunSpec` that follow from the settings alone."""
    return {
        "agent_folder": settings.home.absolute() / "agents" / agent,
        "device": settings.device,
        "threads": settings.worker_threads,
        "cpu_half": settings.cpu_half,
        "trainer": settings.trainer_options(),
        "budget_seconds": settings.budget_seconds,
        "budget_transitions": settings.budget_transitions,
        "stats_interval_steps": settings.stats_interval_steps,
        "baseline_interval_steps": settings.baseline_interval_steps,
        "checkpoint_interval_seconds": settings.checkpoint_interval_seconds,
        "keep_checkpoints": settings.keep_checkpoints,
        "profile_steps": settings.profile_steps,
        "settings": settings.for_agent(agent).settings,
    }


def events_of(path: Path) -> Iterator[Event]:
    """Yield all events that the file at *path* holds; none where there is no file."""
    tail, before = EventTail(path), -1
    while tail.offset != before:
        before = tail.offset
        yield from tail.read()


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
