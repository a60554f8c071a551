"""How long a training step takes in each precision: interleaved, pair by pair."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch

from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.diagnostics.workbench import Workbench
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.precision.precision import Precision

WORTHWHILE = 0.97  # a half type must be this much faster than FP32, and surely so
_BLOCK_SECONDS = 0.03  # long enough for the clock, short enough to meet the same neighbours
_LONGEST_BLOCK = 50  # steps
_WARM_UP_STEPS = 3
_HOPELESS = 2.0  # times FP32's time in the warm-up: not worth another round
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 60

RunSteps = Callable[[Precision, int], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Attributes:
    seconds_per_step: Median.
    ratio: Median over the rounds of its time by FP32's in the same round.
    ratio_error: Standard error of *ratio*, from the quartiles.
    """

    seconds_per_step: float
    ratio: float
    ratio_error: float

    @property
    def is_decided(self) -> bool:
        """Whether more rounds would hardly change on which side of `WORTHWHILE` it is."""
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
        run: Runs that many steps under a precision and returns the seconds they took.
        precisions: FP32 and those to compare with it.
        budget_seconds: Start no further round after so many seconds.
        clock: Monotonic seconds.
    """
    deadline = clock() + budget_seconds
    warm = {p: run(p, _WARM_UP_STEPS) and run(p, 1) for p in precisions}
    hopeless = [p for p in precisions if warm[p] > _HOPELESS * warm[Precision.FP32]]
    contenders = [p for p in precisions if p not in hopeless]
    steps = {p: max(1, min(_LONGEST_BLOCK, round(_BLOCK_SECONDS / warm[p]))) for p in contenders}
    rounds: list[dict[Precision, float]] = []
    while len(rounds) < _MOST_ROUNDS:
        contenders.reverse()  # nobody always follows the same neighbour
        rounds.append({p: run(p, steps[p]) / steps[p] for p in contenders})
        if len(rounds) >= 2 and clock() >= deadline:
            break
        if len(rounds) >= _FEWEST_ROUNDS and all(
            _timing(rounds, p).is_decided for p in contenders if p is not Precision.FP32
        ):
            break
    timings = {p: _timing(rounds, p) for p in contenders}
    for p in hopeless:
        ratio = warm[p] / warm[Precision.FP32]
        timings[p] = Timing(seconds_per_step=warm[p], ratio=ratio, ratio_error=0.0)
    return timings


def _timing(rounds: Sequence[dict[Precision, float]], precision: Precision) -> Timing:
    ratios = [each[precision] / each[Precision.FP32] for each in rounds]
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    # For a normal distribution sigma is the quartiles' distance by 1.349, and the standard error
    # of the median 1.253 sigma by the root of the sample size.
    error = 1.253 * (upper - lower) / 1.349 / len(ratios) ** 0.5
    seconds = statistics.median(each[precision] for each in rounds)
    return Timing(seconds_per_step=seconds, ratio=median, ratio_error=error)


class TrialSteps:
    """Real optimizer steps on a copy of the model, under any precision; see `time_steps`.

    Args:
        bench: Gives model, batches, loss and optimizer.
        config: Of the training to come.
        loss_scale: For FP16.
        clock: Seconds of the kind that counts.

    Raises:
        ValueError: The job's optimizer updates other parameters than it is given.
    """

    def __init__(
        self,
        bench: Workbench,
        config: FP16TrainingConfig,
        loss_scale: float,
        clock: Callable[[], float],
    ) -> None:
        model = bench.model()
        optimizer = bench.job.optimizer(model.parameters())
        own = set(model.parameters())
        if any(p not in own for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                "the job's optimizer updates other parameters than those it is given, so it "
                "cannot be tried on a copy of the model: build it from its argument"
            )
        config = replace(
            config,
            precision=Precision.FP32,
            cpu_half=True,
            loss_scale=max(loss_scale, config.min_loss_scale),
            accumulate=bench.job.accumulate,
        )
        self._trainer = FP16Trainer(model, optimizer, config)
        self._bench, self._clock = bench, clock
        self._batches = cycle(bench.batches)

    def __call__(self, precision: Precision, steps: int) -> float:
        """Run *steps* optimizer steps under *precision*; wait for the device; seconds taken."""
        trainer, loss = self._trainer, self._bench.job.loss
        name: PrecisionName = precision.value
        trainer.set_precision(PrecisionState(requested=name, effective=name, reason="measured"))
        self._wait()
        begun = self._clock()
        for _ in range(steps * trainer.config.accumulate):
            trainer.step(trainer.training_step(next(self._batches), loss))
        self._wait()
        return self._clock() - begun

    def peak_bytes(self, precision: Precision) -> int | None:
        """Peak of CUDA memory in a step above what is allocated between steps; None without."""
        device = self._bench.device
        if device.type != "cuda":
            return None
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        self(precision, 1)
        return torch.cuda.max_memory_allocated(device) - before

    def _wait(self) -> None:
        if self._bench.device.type == "cuda":
            torch.cuda.synchronize(self._bench.device)
