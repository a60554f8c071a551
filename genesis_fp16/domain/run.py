"""The life of a run as a pure state machine: which states follow, and what an ending means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

MAX_BACKOFF_SECONDS = 3600.0
Outcome = Literal["done", "stopped", "failed", "misconfigured"]
EXIT_CODES: Mapping[Outcome, int] = {  # of a worker, by what it says of its end
    "done": os.EX_OK,
    "stopped": os.EX_TEMPFAIL,
    "misconfigured": os.EX_CONFIG,
    "failed": 1,
}


class RunState(StrEnum):
    """``queued -> starting -> running -> stopping -> `` one of the terminal five."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


ACTIVE = frozenset({RunState.STARTING, RunState.RUNNING, RunState.STOPPING})
TERMINAL = frozenset(set(RunState) - ACTIVE - {RunState.QUEUED})

# An attempt can end in every active state: in another attempt or in the run's end.
_ENDINGS = TERMINAL | {RunState.QUEUED}
TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.STARTING, RunState.CANCELLED, RunState.FAILED}),
    RunState.STARTING: _ENDINGS | {RunState.RUNNING, RunState.STOPPING},
    RunState.RUNNING: _ENDINGS | {RunState.STOPPING},
    RunState.STOPPING: _ENDINGS,
    **{state: frozenset() for state in TERMINAL},
}


class StopCause(StrEnum):
    """Why an attempt was ended from outside."""

    SHUTDOWN = "shutdown"  # the daemon stops
    ORPHANED = "orphaned"  # the daemon that started it died
    CANCEL = "cancel"  # an operator, or a newer run that replaces it
    START_TIMEOUT = "start_timeout"
    NO_PROGRESS = "no_progress"
    RUN_TIMEOUT = "run_timeout"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How an attempt's process ended.

    Attributes:
        exit_code: None if a signal ended it, or nobody was there to learn it.
        signal: Number of the signal that ended it.
        cause: Why it was asked to stop, if it was.
    """

    exit_code: int | None = None
    signal: int | None = None
    cause: StopCause | None = None

    def __str__(self) -> str:
        if self.cause is not None:
            return f"stopped: {self.cause}"
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit code {self.exit_code}" if self.exit_code is not None else "vanished"


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often an attempt that failed is repeated.

    Attributes:
        max_attempts: Failed attempts before the run has failed.
        backoff_seconds: Before the first retry; doubled for each further one.
    """

    max_attempts: int
    backoff_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What becomes of the run.

    Attributes:
        state: Terminal, or ``queued`` for another attempt.
        delay_seconds: Before that attempt may start.
        failed: Whether this attempt counts against the policy's `max_attempts`.
    """

    state: RunState
    delay_seconds: float = 0.0
    failed: bool = False


def decide(ending: Ending, *, failures: int, policy: RetryPolicy) -> Verdict:
    """Turn the end of an attempt into the fate of its run; the first rule that fits decides.

    1. Exit code 0: succeeded, even where a stop was under way. 2. Exit code 78: failed, never
    retried. 3. Cancelled; out of time. 4. Stopped by a daemon's end, or an orphan of one:
    queued at once, at no charge. 5. Exit code 75: queued after the backoff, at no charge.
    6. Anything else failed: queued with exponential backoff until the attempts are used up,
    then ``timed_out``, ``crashed`` (by a signal) or ``failed``.

    Args:
        ending: How this attempt ended.
        failures: Attempts of the run that failed before this one.
        policy: See `RetryPolicy`.
    """
    match ending:
        case Ending(exit_code=0):
            verdict = Verdict(state=RunState.SUCCEEDED)
        case Ending(exit_code=os.EX_CONFIG):
            verdict = Verdict(state=RunState.FAILED, failed=True)
        case Ending(cause=StopCause.CANCEL):
            verdict = Verdict(state=RunState.CANCELLED)
        case Ending(cause=StopCause.RUN_TIMEOUT):
            verdict = Verdict(state=RunState.TIMED_OUT, failed=True)
        case Ending(cause=StopCause.SHUTDOWN | StopCause.ORPHANED):
            verdict = Verdict(state=RunState.QUEUED)
        case Ending(exit_code=os.EX_TEMPFAIL, cause=None):
            verdict = Verdict(state=RunState.QUEUED, delay_seconds=policy.backoff_seconds)
        case _ if failures + 1 >= policy.max_attempts:
            verdict = Verdict(state=_exhausted(ending), failed=True)
        case _:
            delay = min(policy.backoff_seconds * 2.0 ** min(failures, 32), MAX_BACKOFF_SECONDS)
            verdict = Verdict(state=RunState.QUEUED, delay_seconds=delay, failed=True)
    return verdict


def _exhausted(ending: Ending) -> RunState:
    if ending.cause is not None:
        return RunState.TIMED_OUT
    return RunState.CRASHED if ending.signal is not None else RunState.FAILED
