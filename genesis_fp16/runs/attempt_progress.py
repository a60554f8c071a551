"""The events of one attempt: what they say about the run, and the deadlines that they meet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from genesis_fp16.domain.event_limits import MAX_NAMES, EventLimits
from genesis_fp16.domain.run import (
    Outcome,
    PartTotals,
    RunSummary,
    StopCause,
)
from genesis_fp16.settings import Settings
from infrastructure.events import Event, EventTail
from infrastructure.events.bounds import MAX_STEPS
from infrastructure.events.event import (
    Evaluated,
    Finished,
    Notice,
    PrecisionChanged,
    Published,
    Started,
    StepStats,
)

LONGEST_BACKLOG = 1 << 22
"""Bytes of events; a worker that writes even faster loses some."""


class AttemptProgress:
    """What the events of one attempt say about it.

    Args:
        tail: Reader of the attempt's event file, from where an earlier daemon stopped.
        summary: Summary of the run so far.
        now: Monotonic seconds of now.
        used_seconds: Seconds that earlier attempts have used of the run's deadline.
        age_seconds: Seconds since the attempt began.

    Attributes:
        summary: Summary of the run so far.
        tail: As given.
        limits: Limits on the events, with what was refused.
        started: Whether the worker has reported that it has started.
        outcome: Outcome that the worker's last event announces; None without one.
    """

    def __init__(
        self,
        tail: EventTail,
        summary: RunSummary,
        settings: Settings,
        now: float,
        *,
        used_seconds: float = 0.0,
        age_seconds: float = 0.0,
    ) -> None:
        self.summary = summary
        self.tail = tail
        self.limits = EventLimits()
        self.started = False
        self.outcome: Outcome | None = None
        self._settings = settings
        self._followed_since = self._began_at = self._last_event_at = now
        self._run_deadline = now + max(0.0, settings.run_timeout_seconds - used_seconds)
        self._age_seconds = age_seconds

    def read(self, now: float, deadline: float = math.inf) -> Iterator[Event]:
        """Apply and yield the events that have come and are within the limits.

        Arguments are in monotonic seconds; the *deadline* is that of `EventTail.read`.
        """
        age = self._age_seconds + now - self._followed_since
        for received in self.tail.read(deadline):
            event = self.limits.admit(received, age)
            if event is not None:
                self._last_event_at = now
                self._apply(event)
                yield event

    @property
    def problems(self) -> dict[str, object]:
        """What was not accepted of the events, by name; empty if all were."""
        problems = {
            "malformed_lines": self.tail.malformed,
            "impossible_events": self.limits.refused,
            "shortened_events": self.limits.cut,
            "skipped_bytes": self.tail.skipped_bytes,
            "first_problem": self.limits.first_problem,
        }
        return {name: value for name, value in problems.items() if value}

    def overdue(self, now: float) -> StopCause | None:
        """The deadline that has passed by the monotonic time *now*, if one has.

        While events wait to be read, nobody knows yet that the worker is silent.
        """
        if now >= self._run_deadline:
            return StopCause.RUN_TIMEOUT
        if self.tail.behind:
            return None
        if not self.started:
            late = now - self._began_at >= self._settings.start_timeout_seconds
            return StopCause.START_TIMEOUT if late else None
        silent = now - self._last_event_at >= self._settings.no_progress_timeout_seconds
        return StopCause.NO_PROGRESS if silent else None

    def excuse_silence(self, now: float) -> None:
        """Count the worker's silence from *now*, in monotonic seconds; the run's time goes on."""
        self._began_at = self._last_event_at = now

    def postpone(self, seconds: float, now: float) -> None:
        """Let no deadline count the last *seconds*; *now* is in monotonic seconds."""
        self._run_deadline += seconds
        self.excuse_silence(now)

    def _apply(self, event: Event) -> None:
        match event:
            case Started():
                self.started = True
            case PrecisionChanged():
                self._set_precision(event)
            case Notice(event="precision_needs_restart", fields={"reason": "floor_policy"}):
                self.summary = replace(self.summary, fell_back_at=event.time)
            case StepStats():
                self._count(event)
            case Evaluated():
                older = self.summary.metrics or {}
                self._set_metrics({**event.metrics, **older, **event.metrics})  # the newest first
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

    def _set_precision(self, changed: PrecisionChanged) -> None:
        """Record the acknowledged precision, and the worker's own fallback if it is one.

        The same acknowledgement answers a daemon that asked for FP32 with this reason. It counts
        as another fallback only if the run was in half precision before.
        """
        state, before = changed.state, self.summary.precision
        fell_back_at = self.summary.fell_back_at
        in_half = before is not None and before["effective"] != "fp32"
        if state.reason == "floor_policy" and (fell_back_at is None or in_half):
            fell_back_at = changed.time
        self.summary = replace(self.summary, precision=state.fields, fell_back_at=fell_back_at)

    def _count(self, stats: StepStats) -> None:
        counted = self.summary
        before = counted.parts or {}
        parts = {part.name: before.get(part.name, PartTotals()).after(part) for part in stats.parts}
        self.summary = replace(
            counted,
            steps=stats.step,
            half_steps=min(MAX_STEPS, counted.half_steps + stats.attempted_in_half),
            fp16_steps=counted.fp16_steps + stats.fp16,
            overflows=counted.overflows + stats.overflow,
            nonfinite_losses=counted.nonfinite_losses + stats.nonfinite_loss,
            parts=parts or None,
        )

    def _set_metrics(self, metrics: Mapping[str, float | None]) -> None:
        known = islice(metrics.items(), MAX_NAMES)
        finite = {k: v if v is not None and math.isfinite(v) else None for k, v in known}
        self.summary = replace(self.summary, metrics=finite)
