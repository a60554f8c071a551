"""Logs the progress of each run; on a terminal it also draws a progress bar."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from sqlalchemy.exc import SQLAlchemyError
from structlog.typing import FilteringBoundLogger

from genesis_fp16.domain.run import TERMINAL, RunState
from genesis_fp16.store import Store
from infrastructure.events import Event, PrecisionState, event
from infrastructure.events.event import StepTotals

LINE_SECONDS = 5.0
MAX_LINES = 100  # of a run's events without progress, and one more for every `LINE_SECONDS` of it

log = structlog.get_logger()

_OF_EVERY_LINE = {"event", "agent", "run_id", "level", "timestamp"}
_RESERVED = _OF_EVERY_LINE | {"epoch", "reason", "phase"}
_RESERVED |= {"state", "seconds", "attempts", "steps", "fp16_steps", "overflows"}
_RESERVED |= {"nonfinite_losses", "part_overflows", "precision", "published", "error"}


@dataclass(slots=True)
class _RunProgress:
    """One run so far, over all its attempts; times in monotonic seconds."""

    agent: str
    run_id: str
    clock: Callable[[], float]
    began_at: float
    lines: int = 0
    lines_left_out: int = 0
    attempts: int = 0
    phase: str = ""
    phase_began_at: float = 0.0
    next_line_at: float = 0.0
    next_evaluation_at: float = 0.0
    done: int = 0
    unit: str = ""
    totals: StepTotals = field(default_factory=StepTotals)
    precision: PrecisionState | None = None
    evaluated: event.Evaluated | None = None
    published: event.Published | None = None
    error: str = ""

    @property
    def log(self) -> FilteringBoundLogger:
        """A new logger for each line, because a progress bar replaces stderr."""
        bound: FilteringBoundLogger = log.bind(agent=self.agent, run_id=self.run_id)
        return bound

    def report(self, level: int, name: str, /, **fields: object) -> None:
        """Log one of the run's events, unless there were too many."""
        if not self.log.is_enabled_for(level):
            return
        if self.lines < MAX_LINES + (self.clock() - self.began_at) / LINE_SECONDS:
            self.lines += 1
            self.log.log(level, name, **fields)
        else:
            self.lines_left_out += 1

    def report_left_out(self) -> None:
        """Log how many lines were left out since the last call."""
        if self.lines_left_out:
            remedy = "the attempt's events.ndjson has them all"
            self.log.warning("events_not_logged", lines=self.lines_left_out, remedy=remedy)
            self.lines_left_out = 0

    def take_totals(self, store: Store) -> None:
        """Take the stored error, and count attempts that an earlier daemon has followed, too.

        A worker that was killed has reported no error; an earlier attempt may have.
        """
        run, attempts = store.run(self.run_id), store.attempts(self.run_id)
        if run is not None:
            self.error = run.error or ""
        if run is not None and len(attempts) > self.attempts:
            self.attempts = len(attempts)
            self.totals.steps, self.totals.fp16_steps = run.steps, run.fp16_steps
            self.totals.overflows = run.overflows
            self.totals.nonfinite_losses = run.nonfinite_losses
            parts = run.parts or {}
            self.totals.part_overflows = {name: part.overflows for name, part in parts.items()}

    def summary(self, now: float) -> dict[str, object]:
        """Fields of the line that ends the run."""
        fields: dict[str, object] = {
            "seconds": round(now - self.began_at, 1),
            "steps": self.totals.steps,
            "fp16_steps": self.totals.fp16_steps,
            "overflows": self.totals.overflows,
        }
        if self.attempts > 1:
            fields["attempts"] = self.attempts
        if self.totals.nonfinite_losses:
            fields["nonfinite_losses"] = self.totals.nonfinite_losses
        if parts := self.totals.part_overflows:
            fields["part_overflows"] = ", ".join(f"{name} {parts[name]}" for name in parts)
        if self.precision is not None:
            fields["precision"] = str(self.precision)
        if self.published is not None:  # its metrics are those of the model it decides about
            fields |= _rounded(self.published.metrics)
            fields["published"] = self.published.published
            fields["reason"] = self.published.reason
        elif self.evaluated is not None:
            fields |= _primary_metric(self.evaluated)
        if self.error:
            fields["error"] = self.error
        return fields


class RunLogger:
    """Logs what an operator wants to read of each run; an `EventListener` of the dispatcher.

    Args:
        console: Where progress bars are drawn if it is a terminal; otherwise lines are logged.
        clock: Monotonic seconds.
        store: Has the totals of attempts that an earlier daemon has followed.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        store: Store | None = None,
    ) -> None:
        self._clock = clock
        self._store = store
        self._runs: dict[str, _RunProgress] = {}
        self._bars = _Bars(console) if console is not None and console.is_terminal else None

    def close(self) -> None:
        """Remove the bars from the terminal."""
        if self._bars is not None:
            self._bars.close()

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Log a new state; of an end also the summary of the run."""
        run = self._run(agent, run_id)
        if state == RunState.STARTING:
            run.attempts += 1
            run.log.info("attempt_started")
        elif state == RunState.QUEUED:
            self._end_phase(run, "phase_stopped")
            run.report_left_out()
            if not run.attempts:
                run.log.info("run_queued")
        elif state in TERMINAL:
            succeeded = state in (RunState.SUCCEEDED, RunState.NO_DATA)
            self._end_phase(run, "phase_ended" if succeeded else "phase_stopped")
            run.report_left_out()
            if self._store is not None:
                with suppress(SQLAlchemyError):  # then the totals are those of this daemon
                    run.take_totals(self._store)
            intended = succeeded or state == RunState.CANCELLED
            write = run.log.info if intended else run.log.error
            write = run.log.warning if state == RunState.NO_DATA else write
            write("run_ended", state=state, **run.summary(self._clock()))
            del self._runs[run_id]

    def on_event(self, agent: str, run_id: str, received: Event) -> None:
        """Log what the worker has reported; frequent events only every `LINE_SECONDS`."""
        run = self._run(agent, run_id)
        match received:
            case event.PhaseStarted():
                self._end_phase(run)
                now = self._clock()
                run.phase, run.phase_began_at, run.done = received.phase, now, 0
                run.next_line_at = now + LINE_SECONDS
                run.report(logging.INFO, "phase_started", phase=received.phase)
            case event.Progress():
                run.done, run.unit = received.done, received.unit
                fields: dict[str, object] = {"done": received.done, "of": received.total}
                fields["unit"] = received.unit
                self._show_progress(run, received.done, received.total, fields)
            case event.StepStats():
                run.totals.add(received)
                fields = _training_fields(run, received)
                self._show_progress(run, received.step, received.total_steps, fields)
            case event.Evaluated():
                run.evaluated = received
                if self._clock() >= run.next_evaluation_at:
                    run.next_evaluation_at = self._clock() + LINE_SECONDS
                    metric = _primary_metric(received)
                    run.log.info("model_evaluated", epoch=received.epoch, **metric)
                    if not metric:
                        run.log.warning(
                            "primary_metric_missing",
                            primary=received.primary,
                            metrics=", ".join(sorted(received.metrics)),
                            remedy="let evaluate() return it among its metrics",
                        )
            case event.PrecisionChanged():
                self._log_precision(run, received)
            case _:
                _log_rare_event(run, received)

    def _run(self, agent: str, run_id: str) -> _RunProgress:
        if run_id not in self._runs:
            self._runs[run_id] = _RunProgress(agent, run_id, self._clock, began_at=self._clock())
        return self._runs[run_id]

    def _show_progress(
        self, run: _RunProgress, done: int, total: int | None, fields: dict[str, object]
    ) -> None:
        fields = {name: value for name, value in fields.items() if value not in (None, "")}
        if self._bars is not None:
            self._bars.draw(run, done, total, fields)
        elif self._clock() >= run.next_line_at:
            run.next_line_at = self._clock() + LINE_SECONDS
            run.log.info("progress_reported", phase=run.phase, **fields)

    def _log_precision(self, run: _RunProgress, changed: event.PrecisionChanged) -> None:
        state, before = changed.state, run.precision
        run.precision = state
        lowered = state.effective == "fp32" and before is not None and before.effective != "fp32"
        fields: dict[str, object] = {**state.fields, "step": changed.step}
        level = logging.WARNING if lowered else logging.INFO
        run.report(level, "precision_changed", **fields, loss_scale=changed.loss_scale)

    def _end_phase(self, run: _RunProgress, name: str = "phase_ended") -> None:
        if self._bars is not None:
            self._bars.remove(run)
        if run.phase:
            seconds = round(self._clock() - run.phase_began_at, 1)
            fields: dict[str, object] = {}
            if run.done:
                fields = {"done": run.done, "unit": run.unit}
            if run.phase == "train":
                fields = {"steps": run.totals.steps, "loss": _round(run.totals.loss)}
                if run.evaluated is not None:
                    fields |= _rounded(run.evaluated.metrics)
            run.report(logging.INFO, name, phase=run.phase, seconds=seconds, **fields)
        run.phase = ""


class _Bars:
    """One progress bar for each run under way."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[int, TaskID] = {}

    def draw(
        self, run: _RunProgress, done: int, total: int | None, fields: Mapping[str, object]
    ) -> None:
        if not self._tasks:
            self._progress.start()
        if id(run) not in self._tasks:
            self._tasks[id(run)] = self._progress.add_task(run.phase, total=total, text="")
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        self._progress.update(self._tasks[id(run)], completed=done, total=total, text=text)

    def remove(self, run: _RunProgress) -> None:
        task = self._tasks.pop(id(run), None)
        if task is not None:
            self._progress.remove_task(task)
        if not self._tasks:
            self._progress.stop()

    def close(self) -> None:
        self._progress.stop()


def open_run_logger(store: Store) -> RunLogger:
    """Make the run logger of a process that uses *store*, with bars on a terminal."""
    return RunLogger(Console(stderr=True, soft_wrap=True), store=store)


def _training_fields(run: _RunProgress, stats: event.StepStats) -> dict[str, object]:
    fields: dict[str, object] = {
        "step": stats.step,
        "of": stats.total_steps,
        "epoch": stats.epoch,
        "loss": _round(stats.loss),
        "precision": stats.precision,
    }
    if stats.precision == "fp16":
        fields |= {"loss_scale": stats.loss_scale, "overflows": run.totals.overflows}
    if stats.seconds > 0:
        fields["steps_per_second"] = _round(stats.attempted / stats.seconds)
    return fields


def _log_rare_event(run: _RunProgress, received: Event) -> None:
    info = logging.INFO
    match received:
        case event.Started():
            run.report(info, "worker_started", pid=received.pid, device=received.device)
        case event.PreflightDone():
            run.report(info, "precision_measured", verdict=received.report.verdict)
            for reason in received.report.reasons:
                run.report(info, "precision_verdict_explained", reason=reason)
        case event.CheckpointSaved():
            fields = {"step": received.step, "bytes": received.size_bytes}
            run.report(logging.DEBUG, "checkpoint_saved", **fields)
        case event.Resumed():
            run.report(info, "run_resumed", step=received.step, checkpoint=received.path)
        case event.Published():
            run.published = received
            name = "model_published" if received.published else "model_not_published"
            run.report(info, name, reason=received.reason, **_rounded(received.metrics))
        case event.Notice():
            level = logging.WARNING if received.level == "warning" else info
            run.report(level, received.event, **_unreserved(received.fields, _OF_EVERY_LINE))
        case event.Finished():
            run.error = received.error
            if received.error:
                outcome = received.outcome
                run.report(logging.ERROR, "attempt_failed", outcome=outcome, error=received.error)


def _primary_metric(evaluated: event.Evaluated) -> dict[str, object]:
    primary = evaluated.primary
    return _rounded({name: value for name, value in evaluated.metrics.items() if name == primary})


def _rounded(metrics: Mapping[str, float]) -> dict[str, object]:
    return _unreserved({name: _round(value) for name, value in metrics.items()})


def _unreserved(
    fields: Mapping[str, object], reserved: Set[str] = frozenset(_RESERVED)
) -> dict[str, object]:
    """Rename fields of an agent that have the name of one of the line's own."""
    return {f"{name}_" if name in reserved else name: value for name, value in fields.items()}


def _round(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")
