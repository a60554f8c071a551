"""Turns the trainer's device counters into `StepStats` events without making the device wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import BaseEvent, PartStats, StepStats
from infrastructure.training.parts import PartsTrainer, Trainer
from infrastructure.training.step_record import StepReading

_SHORTEST_WINDOW_SECONDS = 0.25  # fast steps must not flood the event file
_LONGEST_WINDOW_SECONDS = 2.0  # slow steps must not look like no progress


class StatsReporter:
    """Emits a `StepStats` every *interval* steps; the events together count every step once.

    Attributes:
        total_steps: Steps the run will take; None while unknown.
    """

    def __init__(self, trainer: Trainer, emit: Callable[[BaseEvent], None], interval: int) -> None:
        self._trainer, self._emit, self._interval = trainer, emit, interval
        self.total_steps: int | None = None
        stats = trainer.get_stats()
        self._overflow = int(stats["overflow_steps"])
        self._nonfinite = int(stats["nonfinite_loss_steps"])
        self._parts = trainer.part_totals() if isinstance(trainer, PartsTrainer) else {}
        self._pending: tuple[StepStats, Callable[[], StepReading | None]] | None = None
        self._samples = 0
        self._begin_window()

    def count_samples(self, batch: Batch, batches: int = 1) -> None:
        """Count the rows of the first tensor of *batch*, once for each of so many *batches*."""
        first = next(iter(batch.values()))
        self._samples += batches * (first.shape[0] if first.ndim else 1)

    def exclude(self, seconds: float) -> None:
        """Exclude *seconds* of evaluation or checkpointing from the step time."""
        self._begun += seconds

    def after_step(self, epoch: int) -> StepStats | None:
        """Start a read when due; emit and return the previous one if it has arrived; never wait."""
        emitted = None if self._pending is None else self._poll()
        elapsed = time.monotonic() - self._begun
        if elapsed < _SHORTEST_WINDOW_SECONDS:
            return emitted
        due = self._trainer.training_steps - self._step >= self._interval
        if self._pending is None and (due or elapsed >= _LONGEST_WINDOW_SECONDS):
            self._close_window(epoch)
            emitted = self._poll() or emitted
        return emitted

    def report(self, epoch: int) -> StepStats | None:
        """Emit everything so far and return the last event, if any; wait for the device."""
        emitted = self._wait()
        if self._trainer.training_steps > self._step:
            self._close_window(epoch)
            emitted = self._wait()
        self._begin_window()
        return emitted

    def _begin_window(self) -> None:
        self._begun = time.monotonic()
        self._step = self._trainer.training_steps
        self._fp16 = self._trainer.record.fp16_steps
        self._no_gradient = self._trainer.record.no_gradient_steps
        self._samples = 0

    def _close_window(self, epoch: int) -> None:
        trainer = self._trainer
        no_gradient = trainer.record.no_gradient_steps - self._no_gradient
        stats = StepStats(
            step=trainer.training_steps,
            total_steps=self.total_steps,
            epoch=epoch,
            applied=trainer.training_steps - self._step - no_gradient,  # until the read arrives
            no_gradient=no_gradient,
            fp16=trainer.record.fp16_steps - self._fp16,
            samples=self._samples,
            seconds=max(0.0, time.monotonic() - self._begun),
            loss_scale=1.0,
            precision=trainer.precision.value,
            cuda_memory_allocated_bytes=_peak_memory(trainer.device),
        )
        self._pending = stats, trainer.start_reading()
        self._begin_window()

    def _wait(self) -> StepStats | None:
        if self._pending is not None and self._trainer.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.device)
        return self._poll()

    def _poll(self) -> StepStats | None:
        """Emit the pending window once the device's counters have arrived."""
        if self._pending is None or (reading := self._pending[1]()) is None:
            return None
        stats, self._pending = self._pending[0], None
        overflow = reading.overflow_steps - self._overflow
        nonfinite = reading.nonfinite_loss_steps - self._nonfinite
        self._overflow += overflow
        self._nonfinite += nonfinite
        stats = stats.model_copy(
            update={
                "applied": stats.applied - overflow - nonfinite,
                "overflow": overflow,
                "nonfinite_loss": nonfinite,
                "consecutive_nonfinite_losses": reading.consecutive_nonfinite_losses,
                "loss": _finite(reading.loss),
                "grad_norm": _finite(reading.grad_norm),
                "loss_scale": reading.loss_scale,
                "parts": tuple(self._part_stats(*part) for part in reading.parts.items()),
            }
        )
        self._emit(stats)
        return stats

    def _part_stats(self, name: str, reading: StepReading) -> PartStats:
        before, self._parts[name] = self._parts[name], reading.totals
        attempted, overflow, nonfinite = (
            now - then for now, then in zip(reading.totals, before, strict=True)
        )
        return PartStats(
            name=name,
            attempted=attempted,
            overflow=overflow,
            nonfinite_loss=nonfinite,
            consecutive_nonfinite_losses=reading.consecutive_nonfinite_losses,
            loss=_finite(reading.loss),
            grad_norm=_finite(reading.grad_norm),
            loss_scale=reading.loss_scale,
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _peak_memory(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak
