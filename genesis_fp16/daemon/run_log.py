"""Tells the story of each run in log lines, and on a terminal by a progress bar too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from structlog.typing import FilteringBoundLogger

from genesis_fp16.domain.run import TERMINAL, RunState
from infrastructure.events import Event, PrecisionState, event, read_events

LINE_SECONDS = 5.0

log = structlog.get_logger()

_OWN = {"event", "agent", "run_id", "level", "timestamp", "epoch", "reason", "phase"}
_OWN |= {"state", "seconds", "attempts", "steps", "fp16_steps", "overflows", "nonfinite_losses"}
_OWN |= {"precision", "published", "error"}


@dataclass(slots=True)
class _Story:
    """One run so far, over all its attempts."""

    agent: str
    run_id: str
    began: float
    attempts: int = 0
    phase: str = ""
    phase_began: float = 0.0
    next_line: float = 0.0
    next_evaluation: float = 0.0
    done: int = 0
    unit: str = ""
    steps: int = 0
    fp16_steps: int = 0
    overflows: int = 0
    nonfinite_losses: int = 0
    loss: float | None = None
    precision: PrecisionState | None = None
    evaluated: event.Evaluated | None = None
    published: event.Published | None = None
    error: str = ""

    @property
    def log(self) -> FilteringBoundLogger:
        """Made anew for each line: a bar on the terminal puts itself between log and stderr."""
        bound: FilteringBoundLogger = log.bind(agent=self.agent, run_id=self.run_id)
        return bound

    def count(self, stats: event.StepStats) -> None:
        self.steps = stats.step
        self.fp16_steps += stats.fp16
        self.overflows += stats.overflow
        self.nonfinite_losses += stats.nonfinite_loss
        self.loss = stats.loss if stats.loss is not None else self.loss

    def complete(self, attempts: Path) -> None:
        """Count all attempts from their event files if an earlier daemon has seen some of them."""
        folders = list(attempts.glob("*"))
        if len(folders) <= self.attempts:
            return
        self.attempts, last_step = len(folders), self.steps
        self.fp16_steps = self.overflows = self.nonfinite_losses = 0
        for folder in folders:
            for said in read_events(folder / "events.ndjson"):
                if isinstance(said, event.StepStats):
                    last_step = max(last_step, said.step)
                    self.count(said)
        self.steps = last_step

    def summary(self, now: float) -> dict[str, object]:
        """What the one line at the run's end says."""
        fields: dict[str, object] = {
            "seconds": round(now - self.began, 1),
            "steps": self.steps,
            "fp16_steps": self.fp16_steps,
            "overflows": self.overflows,
        }
        if self.attempts > 1:
            fields["attempts"] = self.attempts
        if self.nonfinite_losses:
            fields["nonfinite_losses"] = self.nonfinite_losses
        if self.precision is not None:
            fields["precision"] = str(self.precision)
        if self.published is not None:  # its metrics are of the model it decides about
            fields |= _rounded(self.published.metrics)
            fields["published"] = self.published.published
            fields["reason"] = self.published.reason
        elif self.evaluated is not None:
            primary = self.evaluated.primary
            fields |= _rounded({primary: self.evaluated.metrics[primary]})
        if self.error:
            fields["error"] = self.error
        return fields


class Narrator:
    """An `EventListener` of the dispatcher.

    Args:
        console: Where progress bars are drawn if it is a terminal; else lines tell.
        clock: Monotonic seconds.
        runs: Folder of the runs, for what was not told here: attempts under an earlier daemon.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        runs: Path | None = None,
    ) -> None:
        self._clock = clock
        self._runs = runs
        self._stories: dict[str, _Story] = {}
        self._bars = _Bars(console) if console is not None and console.is_terminal else None

    def close(self) -> None:
        """Take the bars off the terminal."""
        if self._bars is not None:
            self._bars.close()

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Note the run's state; tell its end in one line."""
        story = self._story(agent, run_id)
        if state == RunState.STARTING:
            story.attempts += 1
            story.log.info("run_starting")
        elif state == RunState.QUEUED:
            self._end_phase(story, "phase_stopped")
            if not story.attempts:
                story.log.info("run_queued")
        elif state in TERMINAL:
            succeeded = state == RunState.SUCCEEDED
            self._end_phase(story, "phase_ended" if succeeded else "phase_stopped")
            if self._runs is not None:
                story.complete(self._runs / run_id / "attempts")
            wanted = succeeded or state == RunState.CANCELLED  # as an operator has said
            tell = story.log.info if wanted else story.log.error
            tell("run_ended", state=state, **story.summary(self._clock()))
            del self._stories[run_id]

    def on_event(self, agent: str, run_id: str, said: Event) -> None:
        """Say what the worker reported, as far as an operator wants to read it now."""
        story = self._story(agent, run_id)
        match said:
            case event.PhaseStarted():
                self._end_phase(story)
                now = self._clock()
                story.phase, story.phase_began, story.done = said.phase, now, 0
                story.next_line, story.next_evaluation = now + LINE_SECONDS, now
                story.log.info("phase_started", phase=said.phase)
            case event.Progress():
                story.done, story.unit = said.done, said.unit
                fields: dict[str, object] = {"done": said.done, "of": said.total}
                self._progress(story, said.done, said.total, {**fields, "unit": said.unit})
            case event.StepStats():
                story.count(said)
                self._progress(story, said.step, said.total_steps, _training(story, said))
            case event.Evaluated():
                story.evaluated = said
                if self._clock() >= story.next_evaluation:
                    story.next_evaluation = self._clock() + LINE_SECONDS
                    deciding = {said.primary: said.metrics[said.primary]}
                    story.log.info("evaluated", epoch=said.epoch, **_rounded(deciding))
            case event.PrecisionChanged():
                self._precision_changed(story, said)
            case _:
                _tell(story, said)

    def _story(self, agent: str, run_id: str) -> _Story:
        if run_id not in self._stories:
            self._stories[run_id] = _Story(agent=agent, run_id=run_id, began=self._clock())
        return self._stories[run_id]

    def _line_is_due(self, story: _Story) -> bool:
        if self._clock() < story.next_line:
            return False
        story.next_line = self._clock() + LINE_SECONDS
        return True

    def _progress(
        self, story: _Story, done: int, total: int | None, fields: dict[str, object]
    ) -> None:
        fields = {name: value for name, value in fields.items() if value not in (None, "")}
        if self._bars is not None:
            self._bars.draw(story, done, total, fields)
        elif self._line_is_due(story):
            story.log.info("progress", phase=story.phase, **fields)

    def _precision_changed(self, story: _Story, said: event.PrecisionChanged) -> None:
        state, before = said.state, story.precision
        story.precision = state
        lowered = state.effective == "fp32" and before is not None and before.effective != "fp32"
        tell = story.log.warning if lowered else story.log.info
        tell(
            "precision_in_force",
            requested=state.requested,
            effective=state.effective,
            reason=state.reason,
            step=said.step,
            loss_scale=said.loss_scale,
        )

    def _end_phase(self, story: _Story, told: str = "phase_ended") -> None:
        if self._bars is not None:
            self._bars.remove(story)
        if story.phase:
            seconds = round(self._clock() - story.phase_began, 1)
            fields: dict[str, object] = {}
            if story.done:
                fields = {"done": story.done, "unit": story.unit}
            if story.phase == "train":
                fields = {"steps": story.steps, "loss": _round(story.loss)}
                if story.evaluated is not None:
                    fields |= _rounded(story.evaluated.metrics)
            story.log.info(told, phase=story.phase, seconds=seconds, **fields)
        story.phase = ""


class _Bars:
    """One progress bar for each run under way."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[int, TaskID] = {}

    def draw(
        self, story: _Story, done: int, total: int | None, fields: Mapping[str, object]
    ) -> None:
        if not self._tasks:
            self._progress.start()
        if id(story) not in self._tasks:
            self._tasks[id(story)] = self._progress.add_task(story.phase, total=total, said="")
        said = " ".join(f"{name}={value}" for name, value in fields.items())
        self._progress.update(self._tasks[id(story)], completed=done, total=total, said=said)

    def remove(self, story: _Story) -> None:
        task = self._tasks.pop(id(story), None)
        if task is not None:
            self._progress.remove_task(task)
        if not self._tasks:
            self._progress.stop()

    def close(self) -> None:
        self._progress.stop()


def _training(story: _Story, stats: event.StepStats) -> dict[str, object]:
    fields: dict[str, object] = {
        "step": stats.step,
        "of": stats.total_steps,
        "epoch": stats.epoch,
        "loss": _round(stats.loss),
        "precision": stats.precision,
    }
    if stats.precision == "fp16":
        fields |= {"loss_scale": stats.loss_scale, "overflows": story.overflows}
    if stats.seconds > 0:
        fields["steps_per_second"] = _round(stats.attempted / stats.seconds)
    return fields


def _tell(story: _Story, said: Event) -> None:
    match said:
        case event.Started():
            story.log.info("worker_started", pid=said.pid, device=said.device)
        case event.PreflightDone():
            story.log.info("precision_measured", verdict=said.report.verdict)
            for why in said.report.reasons:
                story.log.info("precision_reason", said=why)
        case event.CheckpointSaved():
            story.log.debug("checkpoint_saved", step=said.step, bytes=said.size_bytes)
        case event.Resumed():
            story.log.info("resumed", step=said.step, checkpoint=said.path)
        case event.Published():
            story.published = said
            told = "model_published" if said.published else "model_not_published"
            story.log.info(told, reason=said.reason, **_rounded(said.metrics))
        case event.Notice():
            tell = story.log.warning if said.level == "warning" else story.log.info
            tell(said.event, **_unreserved(said.fields))
        case event.Finished():
            story.error = said.error
            if said.error:
                story.log.error("attempt_failed", outcome=said.outcome, error=said.error)


def _rounded(metrics: Mapping[str, float]) -> dict[str, object]:
    return _unreserved({name: _round(value) for name, value in metrics.items()})


def _unreserved(fields: Mapping[str, object]) -> dict[str, object]:
    """Keep an agent's names from colliding with the line's own."""
    return {f"{name}_" if name in _OWN else name: value for name, value in fields.items()}


def _round(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")
