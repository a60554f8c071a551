"""One-pass steps, bit for bit as torch's own; adaptive clipping against plain Python."""

from __future__ import annotations

import math
import statistics
import warnings
from functools import wraps

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

from infrastructure.training.optimizer_step import AdaptiveClip, direct_step

CPU = torch.device("cpu")
ONE, ZERO = torch.ones(()), torch.zeros(())


def make(kind, options, second_group):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((4, 3), (5,), (2, 2))]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], **second_group}]
    optimizer = kind(groups, fused=True, **options)
    return parameters, optimizer


def give_gradients(parameters, optimizer, step, late, overflow):
    generator = torch.Generator().manual_seed(step)
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        if index == late and step < 2:
            parameter.grad = None
    if overflow:
        parameters[0].grad[0, 0] = float("inf")
    optimizer.grad_scale = torch.tensor(4.0)
    optimizer.found_inf = torch.tensor(float(overflow))


@settings(max_examples=min(60, settings.default.max_examples))
@given(
    kind=st.sampled_from([Adam, AdamW, Adagrad, SGD]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    maximize=st.booleans(),
    special=st.sampled_from([{}, {"amsgrad": True}, {"lr": torch.tensor(0.02)}]),
    late=st.sampled_from([None, 1, 2]),
    overflows=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_it_updates_bit_for_bit_as_torchs_own_step(
    kind, weight_decay, maximize, special, late, overflows
):
    options = {"lr": 0.02, "weight_decay": weight_decay, "maximize": maximize}
    options |= special if kind in (Adam, AdamW) else {}
    group = {"lr": 0.01}
    runs = [make(kind, options, group) for _ in range(2)]
    for step, overflow in enumerate(overflows):
        for parameters, optimizer in runs:
            give_gradients(parameters, optimizer, step, late, overflow)
        runs[0][1].step()
        direct_step(runs[1][1])
    for theirs, ours in zip(*(run[0] for run in runs), strict=True):
        assert torch.equal(theirs, ours)
    states = [run[1].state_dict()["state"] for run in runs]
    assert states[0].keys() == states[1].keys()
    for index, state in states[0].items():
        for name, value in state.items():
            assert torch.equal(value, states[1][index][name]), name


@pytest.fixture
def ready():
    parameters, optimizer = make(AdamW, {"lr": 0.02}, {})
    give_gradients(parameters, optimizer, 5, None, overflow=False)
    optimizer.step()
    return parameters, optimizer


def test_without_hooks_torchs_own_step_is_not_called(ready, monkeypatch):
    def announced(_optimizer):
        raise AssertionError

    monkeypatch.setattr(AdamW, "step", announced)  # what is announced passes through it
    with pytest.raises(AssertionError):
        ready[1].step()
    direct_step(ready[1])


def test_hooks_of_the_optimizer_and_of_all_optimizers_are_called(ready):
    called = []
    hooks = [
        ready[1].register_step_pre_hook(lambda *_: called.append("pre")),
        ready[1].register_step_post_hook(lambda *_: called.append("post")),
        register_optimizer_step_pre_hook(lambda *_: called.append("every")),
    ]
    try:
        direct_step(ready[1])
    finally:
        for hook in hooks:
            hook.remove()
    direct_step(ready[1])
    assert sorted(called) == ["every", "post", "pre"]


def test_a_profiler_sees_the_step(ready):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        direct_step(ready[1])
    assert any("Optimizer.step#AdamW" in event.key for event in profile.key_averages())


def test_an_lr_scheduler_sees_that_the_step_was_taken(ready):
    scheduler = LambdaLR(ready[1], lambda epoch: 0.5**epoch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        direct_step(ready[1])
        scheduler.step()
    assert ready[1].param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_replaced_method_is_called(ready, scheduled):
    if scheduled:
        LambdaLR(ready[1], lambda _: 1.0)
    original, called = ready[1].step, []

    @wraps(original)
    def replacement(*args):
        called.append(1)
        return original(*args)

    ready[1].step = replacement
    direct_step(ready[1])
    assert called


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
