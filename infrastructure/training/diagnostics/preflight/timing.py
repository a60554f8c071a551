"""Time of a training step in each precision, measured in interleaved blocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch

from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.diagnostics.job_copy import JobCopy
from infrastructure.training.parts import make_trainer
from infrastructure.training.precision import Precision

WORTHWHILE = 0.97  # a half type must take at most this much of FP32's time
_BLOCK_SECONDS = 0.03  # long enough for the clock, short enough to meet the same neighbours
_LONGEST_BLOCK = 50  # steps
_WARM_UP_STEPS = 3
_TOO_SLOW = 2.0  # times FP32's time in the warm-up: not measured further
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 60

RunSteps = Callable[[Precision, int], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Time of a step in one precision.

    Attributes:
        seconds_per_step: Median.
        ratio: Median over the rounds of its time divided by FP32's in the same round.
        ratio_error: Standard error of *ratio*, from the quartiles.
    """

    seconds_per_step: float
    ratio: float
    ratio_error: float

    @property
    def is_decided(self) -> bool:
        """Whether the ratio is clearly on one side of `WORTHWHILE`: two standard errors away."""
        return abs(self.ratio - WORTHWHILE) > 2.0 * self.ratio_error


def time_steps(
    run: RunSteps,
    precisions: Sequence[Precision],
    *,
    budget_seconds: float,
    clock: Callable[[], float],
) -> dict[Precision, Timing]:
    """Time blocks of steps in every precision in turn until it is clear which are faster.

    Args:
        run: Function that runs so many steps under a precision and returns their seconds.
        precisions: FP32 and those to compare with it.
        budget_seconds: Seconds after which no further round starts.
        clock: Monotonic seconds.
    """
    deadline = clock() + budget_seconds
    warm = {p: run(p, _WARM_UP_STEPS) and run(p, 1) for p in precisions}
    too_slow = [p for p in precisions if warm[p] > _TOO_SLOW * warm[Precision.FP32]]
    timed = [p for p in precisions if p not in too_slow]
    steps = {p: max(1, min(_LONGEST_BLOCK, round(_BLOCK_SECONDS / warm[p]))) for p in timed}
    rounds: list[dict[Precision, float]] = []
    while len(rounds) < _MOST_ROUNDS:
        timed.reverse()  # none always follows the same neighbour
        rounds.append({p: run(p, steps[p]) / steps[p] for p in timed})
        if len(rounds) >= 2 and clock() >= deadline:
            break
        if len(rounds) >= _FEWEST_ROUNDS and all(
            _timing(rounds, p).is_decided for p in timed if p is not Precision.FP32
        ):
            break
    timings = {p: _timing(rounds, p) for p in timed}
    for p in too_slow:
        ratio = warm[p] / warm[Precision.FP32]
        timings[p] = Timing(seconds_per_step=warm[p], ratio=ratio, ratio_error=0.0)
    return timings


def _timing(rounds: Sequence[dict[Precision, float]], precision: Precision) -> Timing:
    ratios = [times[precision] / times[Precision.FP32] for times in rounds]
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    # For a normal distribution sigma is the quartiles' distance by 1.349, and the standard error
    # of the median 1.253 sigma by the root of the sample size.
    error = 1.253 * (upper - lower) / 1.349 / len(ratios) ** 0.5
    seconds = statistics.median(times[precision] for times in rounds)
    return Timing(seconds_per_step=seconds, ratio=median, ratio_error=error)


class TrialSteps:
    """Real optimizer steps on a copy of the model, under any precision; see `time_steps`.

    Args:
        loss_scale: Loss scale for FP16.
        clock: Seconds, of the process or of the wall.

    Raises:
        ValueError: The job's optimizer updates other parameters than its argument.
    """

    def __init__(
        self,
        job: JobCopy,
        config: FP16TrainingConfig,
        loss_scale: float,
        clock: Callable[[], float],
    ) -> None:
        model = job.model()
        config = replace(
            config,
            precision=Precision.FP32,
            cpu_half=True,
            loss_scale=max(loss_scale, config.min_loss_scale),
            accumulate=job.job.accumulate,
        )
        try:
            self._trainer = make_trainer(job.job, model, config, config.wish)
        except ValueError as error:
            raise ValueError(f"the job cannot be tried on a copy of its model: {error}") from error
        self._job, self._clock = job, clock
        self._batches = cycle(job.batches)

    def __call__(self, precision: Precision, steps: int) -> float:
        """Run *steps* optimizer steps under *precision*; wait for the device; return seconds."""
        trainer, loss = self._trainer, self._job.job.loss
        name: PrecisionName = precision.value
        trainer.set_precision(PrecisionState(requested=name, effective=name, reason="measured"))
        self._wait()
        begun = self._clock()
        for _ in range(steps * trainer.config.accumulate):
            trainer.train_batch(next(self._batches), loss)
        self._wait()
        return self._clock() - begun

    def peak_bytes(self, precision: Precision) -> int | None:
        """Peak CUDA memory of a step above the memory held between steps; None without CUDA."""
        device = self._job.device
        if device.type != "cuda":
            return None
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        self(precision, 1)
        return torch.cuda.max_memory_allocated(device) - before

    def _wait(self) -> None:
        if self._job.device.type == "cuda":
            torch.cuda.synchronize(self._job.device)


def step_clock(device: torch.device) -> Callable[[], float]:
    """Process time on one thread of a CPU, which other processes do not affect; else wall time."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter
