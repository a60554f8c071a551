"""A run as a pure state machine: its states, and what follows the end of an attempt."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Literal

from infrastructure.events.event import PartStats

MAX_BACKOFF_SECONDS = 3600.0
LONGEST_WAIT_SECONDS = 300.0  # for room on a full disk, or another machine
Outcome = Literal["done", "no_data", "stopped", "disk_full", "failed", "misconfigured"]
EXIT_CODES: Mapping[Outcome, int] = {  # of a worker, by the outcome it reports
    "done": os.EX_OK,
    "no_data": os.EX_NOINPUT,
    "stopped": os.EX_TEMPFAIL,
    "disk_full": os.EX_TEMPFAIL,
    "misconfigured": os.EX_CONFIG,
    "failed": 1,
}


class RunState(StrEnum):
    """``queued -> starting -> running -> stopping -> `` one of the terminal six."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    NO_DATA = "no_data"  # the agent's sources hold no usable record
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


ACTIVE = frozenset({RunState.STARTING, RunState.RUNNING, RunState.STOPPING})
TERMINAL = frozenset(set(RunState) - ACTIVE - {RunState.QUEUED})

# An attempt can end in every active state: another attempt or the run's end follows.
_ENDINGS = TERMINAL | {RunState.QUEUED}
TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.STARTING, RunState.CANCELLED, RunState.FAILED}),
    RunState.STARTING: _ENDINGS | {RunState.RUNNING, RunState.STOPPING},
    RunState.RUNNING: _ENDINGS | {RunState.STOPPING},
    RunState.STOPPING: _ENDINGS,
    **{state: frozenset() for state in TERMINAL},
}


class StopCause(StrEnum):
    """Why an attempt was stopped from outside."""

    SHUTDOWN = "shutdown"  # the daemon stops
    ORPHANED = "orphaned"  # the daemon that started it died
    PAUSE = "pause"  # an operator, until the agent is resumed
    QUOTA = "quota"  # until the next day
    CANCEL = "cancel"  # an operator, or a newer run that replaces it
    START_TIMEOUT = "start_timeout"
    NO_PROGRESS = "no_progress"
    RUN_TIMEOUT = "run_timeout"


_NO_FAILURE = (StopCause.SHUTDOWN, StopCause.ORPHANED, StopCause.PAUSE, StopCause.QUOTA)


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTotals:
    """Steps of one part of a job, over all attempts of a run.

    Attributes:
        steps: Steps attempted; those that a later attempt repeats count again.
        overflows, nonfinite_losses: Steps with that outcome.
        loss: Last finite loss; None before the first.
        loss_scale: Its last loss scale; 1 outside FP16.
    """

    steps: int = 0
    overflows: int = 0
    nonfinite_losses: int = 0
    loss: float | None = None
    loss_scale: float = 1.0

    def after(self, stats: PartStats) -> PartTotals:
        """The totals with *stats* added."""
        loss_is_known = stats.loss is not None and math.isfinite(stats.loss)
        return PartTotals(
            steps=self.steps + stats.attempted,
            overflows=self.overflows + stats.overflow,
            nonfinite_losses=self.nonfinite_losses + stats.nonfinite_loss,
            loss=stats.loss if loss_is_known else self.loss,
            loss_scale=stats.loss_scale,
        )


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
    position: int = 0
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
    fp16_steps: int = 0
    overflows: int = 0
    nonfinite_losses: int = 0
    fell_back_at: float | None = None
    precision: Mapping[str, str] | None = None
    parts: Mapping[str, PartTotals] | None = None
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
        """Whether it may start at the Unix time *now*.

        A wait longer than any backoff, *backoff_seconds* included, is ignored: the clock has been
        set back since.
        """
        return not 0 < self.available_at - now <= max(MAX_BACKOFF_SECONDS, backoff_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """Results of a run so far; None for what is not known yet."""

    published: bool | None = None
    reason: str | None = None
    metrics: Mapping[str, float | None] | None = None
    primary_metric: str | None = None
    primary_value: float | None = None
    higher_is_better: bool | None = None
    steps: int = 0
    half_steps: int = 0
    fp16_steps: int = 0
    overflows: int = 0
    nonfinite_losses: int = 0
    fell_back_at: float | None = None
    precision: Mapping[str, str] | None = None
    parts: Mapping[str, PartTotals] | None = None
    error: str | None = None

    @classmethod
    def of(cls, run: Run) -> RunSummary:
        """Results of *run*, without the error of an earlier attempt."""
        known = {field.name: getattr(run, field.name) for field in fields(cls)}
        return cls(**{**known, "error": None})


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How an attempt's process ended.

    Attributes:
        exit_code: None if a signal ended it, or if the daemon was down when it ended.
        signal: Number of the signal that ended it.
        cause: Why it was asked to stop; None if it was not.
        disk_full: Whether it ended because a disk had no room, or could not report for that reason.
    """

    exit_code: int | None = None
    signal: int | None = None
    cause: StopCause | None = None
    disk_full: bool = False

    def __str__(self) -> str:
        if self.cause is not None:
            return f"stopped: {self.cause}"
        if self.disk_full:
            return "the disk was full"
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit code {self.exit_code}" if self.exit_code is not None else "vanished"


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often a failed attempt is repeated.

    Attributes:
        max_attempts: Failed attempts before the run has failed.
        backoff_seconds: Wait before the first retry; doubled for each further one.
    """

    max_attempts: int
    backoff_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTransition:
    """The run's next state after an attempt has ended.

    Attributes:
        state: A terminal state, or ``queued`` for another attempt.
        delay_seconds: Wait before that attempt may start.
        failed: Whether this attempt counts against the policy's `max_attempts`.
    """

    state: RunState
    delay_seconds: float = 0.0
    failed: bool = False


def resolve_ending(
    ending: Ending, *, failures: int, policy: RetryPolicy, attempts: int = 1
) -> RunTransition:
    """Decide what follows the end of an attempt; the first rule that applies decides.

    1. Exit code 0: succeeded, and 66: no data, even where a stop was under way. 2. Exit code 78:
    failed, never retried. 3. Cancelled; out of time. 4. Stopped for one of `_NO_FAILURE`: queued at
    once, and not counted as a failure. 5. The disk was full, or exit code 75, as of a
    machine that is taken away: queued after a backoff that doubles with each of the run's
    *attempts* up to `LONGEST_WAIT_SECONDS`, and not counted. 6. Anything else failed: queued with
    exponential backoff until the attempts are used up, then ``timed_out``, ``crashed`` (by a
    signal) or ``failed``.

    Before this attempt, *failures* of the run's attempts have failed; *attempts* counts all of
    them, this one included.
    """
    match ending:
        case Ending(exit_code=0):
            transition = RunTransition(state=RunState.SUCCEEDED)
        case Ending(exit_code=os.EX_NOINPUT):
            transition = RunTransition(state=RunState.NO_DATA)
        case Ending(exit_code=os.EX_CONFIG):
            transition = RunTransition(state=RunState.FAILED, failed=True)
        case Ending(cause=StopCause.CANCEL):
            transition = RunTransition(state=RunState.CANCELLED)
        case Ending(cause=StopCause.RUN_TIMEOUT):
            transition = RunTransition(state=RunState.TIMED_OUT, failed=True)
        case Ending(cause=cause) if cause in _NO_FAILURE:
            transition = RunTransition(state=RunState.QUEUED)
        case Ending(disk_full=True) | Ending(exit_code=os.EX_TEMPFAIL, cause=None):
            delay = min(_doubled(policy.backoff_seconds, attempts - 1), LONGEST_WAIT_SECONDS)
            transition = RunTransition(state=RunState.QUEUED, delay_seconds=delay)
        case _ if failures + 1 >= policy.max_attempts:
            transition = RunTransition(state=_exhausted(ending), failed=True)
        case _:
            delay = min(_doubled(policy.backoff_seconds, failures), MAX_BACKOFF_SECONDS)
            transition = RunTransition(state=RunState.QUEUED, delay_seconds=delay, failed=True)
    return transition


def _doubled(seconds: float, times: int) -> float:
    return seconds * 2.0 ** min(times, 32)


def _exhausted(ending: Ending) -> RunState:
    if ending.cause is not None:
        return RunState.TIMED_OUT
    return RunState.CRASHED if ending.signal is not None else RunState.FAILED
