"""Samples what half precision and rounding cost a training: overflows, underflow, stagnation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import (
    BaseEvent,
    LostUpdatesMeasured,
    Notice,
    OverflowDiagnosed,
    StepStats,
)
from infrastructure.training.diagnostics.lost_updates import (
    Underflow,
    measure_stagnation,
    measure_underflow,
)
from infrastructure.training.diagnostics.overflow_cause import diagnose_overflow, is_finite
from infrastructure.training.diagnostics.repeated_pass import Pass, RepeatedPasses
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.inputs import preserved_generators, random_state
from infrastructure.training.parts import PartsTrainer, Trainer
from infrastructure.training.precision import Precision

T = TypeVar("T")

_COST_SHARE = 0.009  # the other steps of a tiny model need the rest of 1 %
_PAUSE_STEPS = 10  # until it is asked again whether a measurement is affordable
_DIAGNOSED_AFTER = 10  # overflows; doubles with each diagnosis that they bring about
_BACKOFFS = (1, 2, 4, 8, 16, 32)  # undone to try a batch at the scales that overflowed
_STEPS_OF_A_MEASUREMENT = 8.0  # what the first one may take; later ones as long as the last one
_STEPS_OF_A_DIAGNOSIS = 40.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    """What was known before the step that is being measured."""

    precision: Precision
    scale: float
    underflow: Underflow | None
    weights: list[Tensor]  # the live ones
    before: list[Tensor]  # copies
    moved: list[Tensor]  # bool: whether the gradient is not zero
    modules: list[str]
    seconds: float  # spent before the step


class TelemetryObserver:
    """A `StepObserver` that emits `LostUpdatesMeasured` and `OverflowDiagnosed`.

    It repeats the batch of a step and does not affect the training. A sampled step needs the
    memory of two gradients before it, and of the weights while it lasts; other steps need nothing
    and read nothing. Under accumulation the first micro-batch of a step stands for it.

    A step is measured every *interval* steps, or more rarely, so that all measurements take at most
    0.9 % of the time of the steps. An overflow is diagnosed within the same share, or beyond it
    when ten steps have overflowed since the last diagnosis: those were lost anyway, and the
    reaction to overflows may be near. That number doubles each time.

    Args:
        passes: Repeats a pass of the model in training.
        interval: Optimizer steps between two measurements.
        emit: Function that receives the events.
        clock: Monotonic seconds.

    Attributes:
        interval_steps: See `StepObserver`.
        seconds: Time spent so far.
    """

    interval_steps = 1

    def __init__(
        self,
        passes: RepeatedPasses,
        interval: int,
        emit: Callable[[BaseEvent], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._passes: RepeatedPasses | None = passes
        self._interval, self._emit, self._clock = interval, emit, clock
        self._steps, self._step_seconds, self.seconds = 0, 0.0, 0.0
        self._beyond_share = 0.0  # seconds of diagnoses that many overflows brought about
        self._measurement_seconds: float | None = None
        self._diagnosis_seconds: float | None = None
        self._next_step = interval
        self._overflows, self._diagnosed_after, self._overflow_scale = 0, _DIAGNOSED_AFTER, 1.0
        self._batch: Batch | None = None
        self._sample: _Sample | None = None

    def count(self, stats: StepStats) -> None:
        """Take note of steps: their time, and whether they overflowed."""
        self._steps += stats.attempted
        self._step_seconds += stats.seconds
        overflows = stats.overflow + stats.nonfinite_loss
        if stats.precision != "fp32" and overflows:
            self._overflows += overflows
            self._overflow_scale = stats.loss_scale

    def before_step(self, trainer: Trainer, batch: Batch) -> None:
        """Begin to measure the step that *trainer* takes next on *batch*, if it is time."""
        self._batch = batch
        passes, step = self._passes, trainer.training_steps + 1
        if (
            passes is None
            or isinstance(trainer, PartsTrainer)
            or step < self._next_step
            or not trainer.at_step_boundary
        ):
            return
        if self._is_affordable(self._measurement_seconds, _STEPS_OF_A_MEASUREMENT):
            self._sample = self._tried(lambda: self._begin(passes, trainer, batch))
        else:
            self._next_step = step + _PAUSE_STEPS

    def observe(self, trainer: Trainer) -> None:
        """Finish the measurement, or diagnose an overflow; see `StepObserver`."""
        passes, batch, sample = self._passes, self._batch, self._sample
        self._batch = self._sample = None
        if passes is None or isinstance(trainer, PartsTrainer):
            return
        if sample is not None:
            self._tried(lambda: self._finish(trainer, sample))
        elif self._overflows and trainer.precision is Precision.FP32:
            self._overflows = 0
        elif self._overflows and batch is not None:
            affordable = self._is_affordable(self._diagnosis_seconds, _STEPS_OF_A_DIAGNOSIS)
            if affordable or self._overflows >= self._diagnosed_after:
                before = self.seconds
                self._tried(lambda: self._diagnose(passes, trainer, batch))
                if not affordable:
                    self._diagnosed_after *= 2
                    self._beyond_share += self.seconds - before

    def _is_affordable(self, last: float | None, steps: float) -> bool:
        """Whether as much time as the *last* time, or so many *steps*, keeps within the share."""
        if last is None:
            last = steps * self._step_seconds / max(1, self._steps)
        spent = self.seconds - self._beyond_share
        return 0.0 < spent + last <= _COST_SHARE * self._step_seconds

    def _tried(self, measure: Callable[[], T]) -> T | None:
        """What *measure* returns; None after an error, which ends the telemetry."""
        try:
            return measure()
        except Exception as error:  # of a plugin's code, or of the device: the training goes on
            self._passes = None
            consequence = "training continues without telemetry"
            self._emit(Notice.warning("telemetry_not_measured", error, consequence=consequence))
            return None

    def _begin(self, passes: RepeatedPasses, trainer: FP16Trainer, batch: Batch) -> _Sample | None:
        began = self._clock()
        self._next_step = trainer.training_steps + 1 + self._interval
        precision, scale = trainer.precision, float(trainer.get_stats()["current_scale"])
        with preserved_generators(passes.device):
            state = random_state(passes.device)
            step = passes.run(batch, precision, scale, state, dropout=True)
            if not is_finite(step):
                self._measurement_seconds = self._spend(began)
                return None  # the step will be skipped; what overflows is diagnosed elsewhere
            underflow = None
            if precision is not Precision.FP32:
                underflow = self._underflow(passes, batch, step, precision, scale)
        trained = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
        chosen = [
            (weight, gradient, module)
            for weight, gradient, module in zip(
                passes.parameters, step.gradients, passes.modules, strict=True
            )
            if gradient is not None and id(weight) in trained
        ]
        return _Sample(
            precision=precision,
            scale=scale,
            underflow=underflow,
            weights=[weight for weight, _, _ in chosen],
            before=[weight.detach().clone() for weight, _, _ in chosen],
            moved=[gradient != 0.0 for _, gradient, _ in chosen],
            modules=[module for _, _, module in chosen],
            seconds=self._spend(began),
        )

    def _underflow(
        self,
        passes: RepeatedPasses,
        batch: Batch,
        step: Pass,
        precision: Precision,
        scale: float,
    ) -> Underflow | None:
        """Compare *step* with FP32; without dropout if it drew random numbers."""
        state = random_state(passes.device)
        if step.drew_random:
            if passes.draws_random_half(batch, precision, state):
                return None
            step = passes.run(batch, precision, scale, state)
        exact = passes.run(batch, Precision.FP32, 1.0, state)
        return measure_underflow(
            step.gradients,
            exact.gradients,
            precision=precision,
            scale=scale,
            modules=passes.modules,
        )

    def _finish(self, trainer: FP16Trainer, sample: _Sample) -> None:
        began, underflow = self._clock(), sample.underflow
        skipped, stagnation = trainer.last_step_skipped, None
        if skipped is not None and not skipped.item():
            weights = [weight.detach() for weight in sample.weights]
            stagnation = measure_stagnation(
                sample.before, weights, sample.moved, modules=sample.modules
            )
        self._measurement_seconds = sample.seconds + self._spend(began)
        self._emit(
            LostUpdatesMeasured(
                step=trainer.training_steps,
                precision=sample.precision.value,
                loss_scale=sample.scale,
                zero=underflow.zero if underflow else None,
                subnormal=underflow.subnormal if underflow else None,
                underflow_module=underflow.module if underflow else "",
                stagnation=stagnation.rate if stagnation else None,
                stagnation_module=stagnation.module if stagnation else "",
                seconds=self._measurement_seconds,
            )
        )

    def _diagnose(self, passes: RepeatedPasses, trainer: FP16Trainer, batch: Batch) -> None:
        began, config = self._clock(), trainer.config
        overflows, self._overflows = self._overflows, 0
        scales, lowest = [1.0], 1.0
        if trainer.precision.scales_loss:  # it has come down since, by one factor each time
            backoffs = [count for count in _BACKOFFS if count <= overflows]
            scales = [self._overflow_scale / config.backoff_factor**count for count in backoffs]
            lowest = config.min_loss_scale
        diagnosis = diagnose_overflow(
            passes, batch, precision=trainer.precision, scales=scales, lowest=lowest
        )
        self._diagnosis_seconds = self._spend(began)
        self._emit(
            OverflowDiagnosed(
                step=trainer.training_steps,
                precision=trainer.precision.value,
                loss_scale=diagnosis.scale,
                overflows=overflows,
                cause=diagnosis.cause,
                lower_scale_helps=diagnosis.lower_scale_helps,
                module=diagnosis.module,
                operation=diagnosis.operation,
                seconds=self._diagnosis_seconds,
            )
        )

    def _spend(self, began: float) -> float:
        seconds = self._clock() - began
        self.seconds += seconds
        return seconds
