"""On a clock that the test winds: what is chosen must not depend on this machine."""

import random
from collections.abc import Callable

import pytest
import torch

from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.diagnostics.job_copy import JobCopy
from infrastructure.training.diagnostics.preflight.timing import WORTHWHILE, TrialSteps, time_steps

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16


class Machine:
    """Steps of a known length, a machine that slows down and speeds up, and noise."""

    def __init__(self, seconds: dict[Precision, float], noise: float = 0.0, drift: float = 0.0):
        self.seconds, self.noise, self.drift = seconds, noise, drift
        self.now = 0.0
        self.steps = dict.fromkeys(seconds, 0)
        self._random = random.Random(3)

    def clock(self) -> float:
        return self.now

    def run(self, precision: Precision, steps: int) -> float:
        slow = 1.0 + self.drift * self.now
        taken = steps * self.seconds[precision] * slow
        taken *= 1.0 + self._random.uniform(-self.noise, self.noise)
        self.now += taken
        self.steps[precision] += steps
        return taken

    def measure(self, budget: float = 60.0):
        return time_steps(self.run, list(self.seconds), budget_seconds=budget, clock=self.clock)


@pytest.mark.parametrize("true_ratio", [0.5, 0.7, 0.85, 0.93, 1.0, 1.1, 1.6])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_choosing_by_it_costs_at_most_five_per_cent(true_ratio: float, noise: float) -> None:
    timing = Machine({FP32: 0.004, BF16: 0.004 * true_ratio}, noise).measure()[BF16]
    takes_half = timing.ratio + timing.ratio_error <= WORTHWHILE
    chosen = true_ratio if takes_half else 1.0
    assert chosen / min(1.0, true_ratio) <= 1.05 or abs(true_ratio - 0.93) < 0.01
    assert takes_half or true_ratio >= 0.93


def test_a_machine_that_slows_down_does_not_change_the_ratio() -> None:
    """Timed one after the other, the second would look slower."""
    machine = Machine({FP32: 0.002, BF16: 0.002}, drift=0.2)
    assert machine.measure()[BF16].ratio == pytest.approx(1.0, abs=0.03)


def test_noise_costs_more_rounds() -> None:
    quiet, noisy = (Machine({FP32: 0.004, BF16: 0.0038}, noise) for noise in (0.0, 0.3))
    quiet.measure()
    noisy.measure()
    assert noisy.steps[BF16] > 2 * quiet.steps[BF16]


def test_a_precision_that_is_too_slow_is_not_measured_further() -> None:
    machine = Machine({FP32: 0.01, FP16: 0.5, BF16: 0.005})
    timings = machine.measure()
    assert machine.steps[FP16] == 4
    assert timings[FP16].ratio == pytest.approx(50.0)
    assert timings[BF16].ratio == pytest.approx(0.5)


def test_the_budget_ends_the_measurement() -> None:
    machine = Machine({FP32: 3.0, BF16: 2.9}, noise=0.1)
    machine.measure(budget=5.0)
    assert machine.now < 60.0


@pytest.fixture
def steps(bench: Callable[..., JobCopy]) -> Callable[..., TrialSteps]:
    def make(*, clock: Callable[[], float], **job: object) -> TrialSteps:
        return TrialSteps(bench("mlp", **job), FP16TrainingConfig(), 1024.0, clock)

    return make


def test_trial_steps_are_real_steps_under_each_precision(steps: Callable[..., TrialSteps]) -> None:
    ticks = iter(range(1000))
    trial = steps(clock=lambda: float(next(ticks)), accumulate=2)
    for precision in (FP32, FP16, BF16):
        assert trial(precision, 3) == 1.0  # one tick from begin to end
    stats = trial._trainer.get_stats()
    assert stats["training_steps"] == stats["applied_steps"] == 9
    assert stats["fp16_steps"] == 3


def test_optimizer_of_other_parameters_is_refused(steps: Callable[..., TrialSteps]) -> None:
    """On a copy it would train the original."""
    own = torch.nn.Linear(8, 1)

    def optimizer(_):
        return torch.optim.SGD(own.parameters(), lr=0.1)

    with pytest.raises(ValueError, match="other parameters"):
        steps(clock=lambda: 0.0, optimizer=optimizer)
