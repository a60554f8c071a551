"""What a training step costs in FP32 and in other precisions, on a copy of the model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from infrastructure.agent_contract import Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.profile_report import OperatorCost, StepCost
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.diagnostics.job_copy import JobCopy
from infrastructure.training.diagnostics.preflight.timing import (
    Timing,
    TrialSteps,
    step_clock,
    time_steps,
)
from infrastructure.training.inputs import preserved_generators
from infrastructure.training.precision import Precision
from infrastructure.training.profiling.product_flops import ProductFlops

_BATCHES = 4
_PROFILED_STEPS = 7
_OPERATORS = 8  # that are reported
_ROUNDS = 9  # of timing a pass
_FEWEST_ROWS = 2  # one row makes some losses and normalisations fail
_CAST = "aten::_to_copy"


def measure_steps(
    job: Job,
    device: torch.device,
    config: FP16TrainingConfig,
    precisions: Iterable[Precision],
    *,
    loss_scale: float = 1.0,
    budget_seconds: float = 3.0,
) -> tuple[StepCost, ...]:
    """Measure the step of *job* in FP32 first and in *precisions*.

    The job's weights and the random generators do not change.

    Args:
        loss_scale: Loss scale of FP16.
        budget_seconds: Seconds for timing the steps in turn.

    Raises:
        UncopyableModelError: See `copy_model`.
        torch.OutOfMemoryError: The device has no room for a copy.
        ValueError: The optimizer updates other parameters than its argument.
    """
    with preserved_generators(device), torch.enable_grad():
        copied = JobCopy(job, device, _BATCHES)
        clock = step_clock(device)
        steps = TrialSteps(copied, config, loss_scale, clock)
        chosen = [*dict.fromkeys((Precision.FP32, *precisions))]
        timings = time_steps(steps, chosen, budget_seconds=budget_seconds, clock=clock)
        return tuple(
            _step_cost(copied, steps, precision, timings[precision]) for precision in chosen
        )


def _step_cost(job: JobCopy, steps: TrialSteps, precision: Precision, timing: Timing) -> StepCost:
    is_fp32, operators = precision is Precision.FP32, _Operators(job.device.type == "cuda")
    for _ in range(_PROFILED_STEPS):
        operators.add(partial(steps, precision, 1))
    return StepCost(
        precision=precision.value,
        seconds=timing.seconds_per_step,
        ratio=None if is_fp32 else timing.ratio,
        ratio_error=None if is_fp32 else timing.ratio_error,
        fixed_share=_fixed_share(job, precision),
        busy_share=operators.busy_share(timing.seconds_per_step),
        cast_share=operators.cast_share,
        product_flops=_product_flops(job, precision),
        operators=operators.dearest(),
    )


class _Operators:
    """Operators of a step as torch's profiler sees them: medians over several steps."""

    def __init__(self, on_cuda: bool) -> None:
        self._on_cuda = on_cuda
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
        self._own: dict[str, list[float]] = {}
        self._calls: dict[str, int] = {}
        self._casts: list[float] = []

    def add(self, step: Callable[[], object]) -> None:
        """Profile one *step*."""
        with profile(activities=self._activities) as done:
            step()
        casts = 0.0
        for event in done.key_averages():
            if event.device_type.name != "CPU":
                continue  # a kernel: the operator that launched it has its time, too
            self_time, whole = event.self_cpu_time_total, event.cpu_time_total
            if self._on_cuda:
                self_time, whole = event.self_device_time_total, event.device_time_total
            self._own.setdefault(event.key, []).append(1e-6 * self_time)
            self._calls[event.key] = event.count
            casts += 1e-6 * whole if event.key == _CAST else 0.0
        self._casts.append(casts)

    @property
    def _seconds(self) -> dict[str, float]:
        return {name: statistics.median(seconds) for name, seconds in self._own.items()}

    @property
    def cast_share(self) -> float:
        return statistics.median(self._casts) / (sum(self._seconds.values()) or 1.0)

    def busy_share(self, step_seconds: float) -> float | None:
        """Share of the step in which the device computes; None without CUDA."""
        return min(1.0, sum(self._seconds.values()) / step_seconds) if self._on_cuda else None

    def dearest(self) -> tuple[OperatorCost, ...]:
        seconds = self._seconds
        total = sum(seconds.values()) or 1.0
        names = sorted(seconds, key=lambda name: -seconds[name])[:_OPERATORS]
        return tuple(
            OperatorCost(
                name=name,
                calls=self._calls[name],
                seconds=seconds[name],
                share=seconds[name] / total,
            )
            for name in names
            if seconds[name] > 0.0
        )


def _fixed_share(job: JobCopy, precision: Precision) -> float | None:
    """Time of forward and backward with two rows, divided by that with all; None if it fails."""
    batch = job.batches[0]
    try:
        few = _rows(batch, _FEWEST_ROWS)
        if few is None:
            return None
        run = _pass(job, precision)
        run(few)
    except (RuntimeError, ValueError, IndexError):  # the loss needs more rows
        return None
    run(batch)
    few_seconds, all_seconds = [], []
    for _ in range(_ROUNDS):
        few_seconds.append(run(few))
        all_seconds.append(run(batch))
    return min(1.0, statistics.median(few_seconds) / statistics.median(all_seconds))


def _rows(batch: Batch, count: int) -> Batch | None:
    """The first rows of *batch*; None if it has no more, or its tensors do not agree on them."""
    sizes = {tensor.shape[0] for tensor in batch.values() if tensor.ndim}
    if len(sizes) != 1 or sizes.pop() <= count:
        return None
    return {name: tensor[:count] if tensor.ndim else tensor for name, tensor in batch.items()}


def _pass(job: JobCopy, precision: Precision) -> Callable[[Batch], float]:
    """Function that runs forward and backward of a batch and returns their seconds."""
    model, clock = job.model(), step_clock(job.device)

    def run(batch: Batch) -> float:
        _wait(job.device)
        begun = clock()
        job.loss(model, batch, precision).backward()
        _wait(job.device)
        seconds = clock() - begun
        model.zero_grad(set_to_none=True)
        return seconds

    return run


def _product_flops(job: JobCopy, precision: Precision) -> dict[str, float]:
    """Operations of the products of a forward and backward pass, by type."""
    model, counted = job.model(), ProductFlops()
    with counted:
        job.loss(model, job.batches[0], precision).backward()
    return counted.flops


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
