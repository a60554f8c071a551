"""What the store gives out: frozen copies of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genesis_fp16.domain.run import ACTIVE, MAX_BACKOFF_SECONDS, TERMINAL, RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One scheduled training of one agent; see `schema.runs` for the columns."""

    id: str
    agent: str
    number: int
    trigger: str
    state: RunState
    seed: int
    due_at: float
    created_at: float
    available_at: float
    baseline_of: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    active_seconds: float = 0.0
    failures: int = 0
    cancel_requested: bool = False
    published: bool | None = None
    reason: str | None = None
    metrics: Mapping[str, float | None] | None = None
    primary_metric: str | None = None
    primary_value: float | None = None
    higher_is_better: bool | None = None
    steps: int = 0
    half_steps: int = 0
    precision: Mapping[str, str] | None = None
    error: str | None = None
    folder_removed: str | None = None

    @property
    def active(self) -> bool:
        """Whether an attempt of it is under way."""
        return self.state in ACTIVE

    @property
    def finished(self) -> bool:
        """Whether it has reached a state that it never leaves."""
        return self.state in TERMINAL

    def is_available(self, now: float, backoff_seconds: float) -> bool:
        """Whether it may start at the Unix time *now*, with a backoff as it is set.

        What waits for longer than any backoff does so by a clock that has been set back since.
        """
        return not 0 < self.available_at - now <= max(MAX_BACKOFF_SECONDS, backoff_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One process that worked on a run; see `schema.attempts` for the columns."""

    run_id: str
    number: int
    incarnation: str
    started_at: float
    pid: int | None = None
    pid_started_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    ending: str | None = None
    events_offset: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DueTime:
    """Up to when the due times of one agent were dealt with, in Unix seconds."""

    agent: str
    last_due: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """What a run has to show so far; None where nothing is known yet."""

    published: bool | None = None
    reason: str | None = None
    metrics: Mapping[str, float | None] | None = None
    primary_metric: str | None = None
    primary_value: float | None = None
    higher_is_better: bool | None = None
    steps: int = 0
    half_steps: int = 0
    precision: Mapping[str, str] | None = None
    error: str | None = None

    @classmethod
    def of(cls, run: Run) -> RunSummary:
        """What *run* has to show, without the error of an earlier attempt."""
        return cls(
            published=run.published,
            reason=run.reason,
            metrics=run.metrics,
            primary_metric=run.primary_metric,
            primary_value=run.primary_value,
            higher_is_better=run.higher_is_better,
            steps=run.steps,
            half_steps=run.half_steps,
            precision=run.precision,
        )
