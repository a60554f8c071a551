"""Measures a copy of a training job in every precision and recommends one."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch

from infrastructure.agent_contract import Job
from infrastructure.events import PrecisionName
from infrastructure.events.preflight_report import (
    ModuleExtremes,
    PrecisionMeasurement,
    PreflightReport,
)
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.diagnostics.job_copy import JobCopy
from infrastructure.training.diagnostics.preflight.cost import gradient_error, saved_bytes
from infrastructure.training.diagnostics.preflight.ranges import FP16_MAX, Ranges, measure_ranges
from infrastructure.training.diagnostics.preflight.timing import (
    TrialSteps,
    step_clock,
    time_steps,
)
from infrastructure.training.diagnostics.preflight.verdict import (
    LARGEST_GRADIENT_ERROR,
    choose_precision,
)
from infrastructure.training.inputs import preserved_generators
from infrastructure.training.precision import Precision, device_name, native_half_types

_HIGHEST_SCALE = 2.0**64


def preflight(
    job: Job,
    device: torch.device,
    config: FP16TrainingConfig | None = None,
    *,
    batches: int = 4,
    budget_seconds: float = 10.0,
) -> PreflightReport:
    """Measure *job* in every precision and recommend one.

    Measures copies of the model: the job's weights, the random generators and the position in the
    data do not change. Times whole optimizer steps on one device, without communication between
    ranks.

    Args:
        config: The training's configuration; ``cpu_half`` has FP16 timed on a CPU too.
        batches: Micro-batches to use, at most.
        budget_seconds: Seconds for timing; a round that has started is finished.

    Raises:
        RuntimeError: The job does not run in FP32.
        ValueError: The job yields no batches, or `TrialSteps` refuses its optimizer.
    """
    config = config or FP16TrainingConfig()
    job = replace(job, keep_fp32=(*job.keep_fp32, *config.keep_fp32))
    trial = _Trial(job, device, config, batches)
    with preserved_generators(device), torch.enable_grad():
        try:
            measured = trial.measure(budget_seconds)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return trial.report((), "fp32", ("FP32: no room on the device for a copy to measure",))
        verdict, reasons = choose_precision(measured, on_cpu=device.type == "cpu")
        return trial.report(measured, verdict, reasons)


class _Trial:
    def __init__(
        self, job: Job, device: torch.device, config: FP16TrainingConfig, batches: int
    ) -> None:
        self._config, self._device = config, device
        with preserved_generators(device):
            self._job = JobCopy(job, device, batches)
        self._ranges: Ranges | None = None
        self._fp16_error = ""

    def measure(self, budget_seconds: float) -> tuple[PrecisionMeasurement, ...]:
        try:
            self._ranges = measure_ranges(self._job)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation that FP16 lacks on this device
            self._fp16_error = _first_line(error)
        measurements = {precision: self._measure_numerics(precision) for precision in Precision}
        clock = step_clock(self._device)
        steps = TrialSteps(self._job, self._config, self._recommended_scale or 1.0, clock)
        timed = [
            p for p, measurement in measurements.items() if measurement.usable and self._is_timed(p)
        ]
        timings = time_steps(steps, timed, budget_seconds=budget_seconds, clock=clock)
        for precision, timing in timings.items():
            measurements[precision] = measurements[precision].model_copy(
                update={
                    "seconds_per_step": timing.seconds_per_step,
                    "ratio": timing.ratio,
                    "ratio_error": timing.ratio_error,
                    "peak_bytes": steps.peak_bytes(precision),
                }
            )
        return tuple(measurements.values())

    def report(
        self,
        measured: tuple[PrecisionMeasurement, ...],
        verdict: PrecisionName,
        reasons: tuple[str, ...],
    ) -> PreflightReport:
        scale = self._recommended_scale
        return PreflightReport(
            measured_at=time.time(),
            device=str(self._device),
            device_name=device_name(self._device),
            torch_version=torch.__version__,
            threads=torch.get_num_threads(),
            batches=len(self._job.batches),
            measurements=measured,
            modules=self._modules(scale),
            largest_safe_scale=self._ranges.largest_safe_scale if self._ranges else None,
            recommended_scale=scale,
            underflow=self._ranges.underflow(scale) if self._ranges and scale else 0.0,
            verdict=verdict,
            reasons=reasons,
        )

    def _measure_numerics(self, precision: Precision) -> PrecisionMeasurement:
        """Measure everything about one precision except its time."""
        name = precision.value
        if precision is Precision.FP32:
            saved = saved_bytes(self._job, precision)
            return PrecisionMeasurement(precision=name, saved_bytes=saved)
        try:
            saved = saved_bytes(self._job, precision)
            scale = (self._recommended_scale or 1.0) if precision.scales_loss else 1.0
            is_timed = self._is_timed(precision)
            error = gradient_error(self._job, precision, scale) if is_timed else None
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as refusal:
            remark = f"does not run: {_first_line(refusal)}"
            return PrecisionMeasurement(precision=name, usable=False, remarks=(remark,))
        objections = tuple(self._objections(precision, error))
        remarks = objections
        if not is_timed:
            remarks = (*objections, "not timed: a CPU emulates it (cpu_half=True times it)")
        return PrecisionMeasurement(
            precision=name,
            usable=not objections,
            remarks=remarks,
            saved_bytes=saved,
            gradient_error=error,
        )

    def _objections(self, precision: Precision, error: float | None) -> list[str]:
        objections = []
        ranges = self._ranges
        if self._device.type != "cpu" and not native_half_types(self._device)[precision.value]:
            objections.append("the device does not compute it natively")
        if ranges is not None and not ranges.loss_is_finite:
            objections.append("the loss or a gradient is not finite in FP32 either")
        if error is not None and not math.isfinite(error):
            objections.append("its gradient is not finite")
        elif error is not None and error > LARGEST_GRADIENT_ERROR:
            objections.append(f"its gradient differs from FP32's by {error:.0%}")
        if precision is not Precision.FP16:
            return objections
        if self._fp16_error:
            objections.append(f"does not run: {self._fp16_error}")
        elif ranges is not None:
            objections += [
                f"{name} reaches {module_range.activation:.3g} in the forward pass, FP16 ends at "
                f"{FP16_MAX:.0f}: normalise its input, name it in keep_fp32, or train in BF16"
                for name, module_range in ranges.modules.items()
                if not module_range.activation <= FP16_MAX
            ]
            highest = ranges.largest_safe_scale
            if highest is not None and highest < self._config.min_loss_scale:
                objections.append(f"gradients overflow at any loss scale above {highest:g}")
        return objections

    def _is_timed(self, precision: Precision) -> bool:
        """Whether to time it: a CPU emulates FP16, slowly, so only on request."""
        emulated = self._device.type == "cpu" and precision is Precision.FP16
        return not emulated or self._config.cpu_half

    @property
    def _recommended_scale(self) -> float | None:
        """One step below the highest safe scale: other batches have other gradients."""
        highest = self._ranges.largest_safe_scale if self._ranges else None
        return None if highest is None else min(highest / 2.0, _HIGHEST_SCALE)

    def _modules(self, scale: float | None) -> tuple[ModuleExtremes, ...]:
        if self._ranges is None:
            return ()
        ranges = self._ranges
        by_activation = sorted(ranges.modules.items(), key=lambda item: -item[1].activation)
        return tuple(
            ModuleExtremes(
                module=name,
                activation=module_range.activation,
                gradient=module_range.gradient,
                underflow=ranges.underflow(scale, name) if scale else 0.0,
                keep_fp32=not module_range.activation <= FP16_MAX,
            )
            for name, module_range in by_activation
        )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
