"""Adaptive clipping against plain Python, and in the trainer."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import nn

from infrastructure.training.adaptive_clip import AdaptiveClip

CPU = torch.device("cpu")
ONE, ZERO = torch.ones(()), torch.zeros(())


class ZClip:
    """Kumar et al. 2025 in plain Python, as their own code has it."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.mean = self.variance = 0.0

    def allowed(self, norm: float) -> float:
        if len(self.first) < 25:
            self.first.append(norm)
            self.mean, self.variance = (
                statistics.fmean(self.first),
                statistics.pvariance(self.first),
            )
            return norm
        deviation = math.sqrt(self.variance)
        z = (norm - self.mean) / (deviation + 1e-6)
        if z > 2.5:
            norm = self.mean + 2.5 * deviation / (z / 2.5)
        self.mean = 0.97 * self.mean + 0.03 * norm
        self.variance = 0.97 * self.variance + 0.03 * (norm - self.mean) ** 2
        return norm


def norms(count: int, spikes: dict[int, float]) -> list[float]:
    generator = torch.Generator().manual_seed(2)
    values = (2.0 + 0.3 * torch.randn(count, generator=generator)).tolist()
    return [spikes.get(step, value) for step, value in enumerate(values)]


def test_adaptive_clip_is_zclip() -> None:
    clip, reference = AdaptiveClip(CPU), ZClip()
    divisors = []
    for norm in norms(200, {10: 9.0, 40: 50.0, 41: 50.0, 90: 4.0, 150: 1e4}):
        divisors.append(clip(torch.tensor(norm), ZERO).item())
        expected = norm / reference.allowed(norm)
        assert divisors[-1] == pytest.approx(expected, rel=1e-3)
    assert max(divisors[:25]) == 1.0
    assert min(divisors[40], divisors[150]) > 5.0
    assert sum(divisor > 1.0 for divisor in divisors) < 12


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("at", [3, 60])
def test_a_skipped_step_leaves_the_statistics_alone(bad: float, at: int) -> None:
    """In a naive running mean one infinite norm switches clipping off for good."""
    clip, undisturbed = AdaptiveClip(CPU), AdaptiveClip(CPU)
    for step, norm in enumerate(norms(100, {})):
        if step == at:
            clip(torch.tensor(bad), ONE)
        clip(torch.tensor(norm), ZERO)
        undisturbed(torch.tensor(norm), ZERO)
    assert clip.state_dict() == undisturbed.state_dict()
    assert clip(torch.tensor(100.0), ZERO).item() > 10.0


def test_an_outlier_does_not_widen_the_statistics() -> None:
    """The clipped norm enters the mean: the second of two spikes is clipped as well."""
    clip = AdaptiveClip(CPU)
    for norm in norms(100, {}):
        clip(torch.tensor(norm), ZERO)
    first, second = (clip(torch.tensor(1000.0), ZERO).item() for _ in range(2))
    assert second == pytest.approx(first, rel=0.2)


@pytest.mark.parametrize("optimizer", ["sgd", "sgd-dampening"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_spike_moves_the_weights_no_further_than_usual(
    make_trainer, loss_fn, batch, spiked, precision: str, optimizer: str
) -> None:
    """Under fused and under documented optimizers; the fixed clipping is off."""

    def furthest(adaptive: bool) -> float:
        trainer = make_trainer(
            precision, optimizer, max_grad_norm=None, adaptive_clip=adaptive, loss_scale=8.0
        )
        for group in trainer.optimizer.param_groups:
            group["momentum"] = group["dampening"] = 0.0
        moved = []
        for step in range(51):
            before = nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
            trainer.step(trainer.training_step(spiked(batch, step), loss_fn))
            after = nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
            moved.append((after - before).norm().item())
        return moved[-1] / max(moved[25:-1])

    assert furthest(adaptive=True) < 2.0
    assert furthest(adaptive=False) > 100.0


def test_fixed_and_adaptive_clipping_both_bind(make_trainer, loss_fn, batch, spiked) -> None:
    trainer = make_trainer("fp32", "sgd", max_grad_norm=1e-3, adaptive_clip=True)
    fixed = make_trainer("fp32", "sgd", max_grad_norm=1e-3)
    for step in range(20):
        for each in (trainer, fixed):
            each.step(each.training_step(spiked(batch, step), loss_fn))
    for one, other in zip(trainer.model.parameters(), fixed.model.parameters(), strict=True):
        assert torch.equal(one, other)
