"""Steps without torch's wrappers: bit for bit as torch's own, and seen by who must see them."""

from __future__ import annotations

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

from infrastructure.torch_internals.direct_step import direct_step

CPU = torch.device("cpu")


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


def take_direct_step(optimizer, overflow=False):
    direct_step(optimizer, torch.tensor(4.0), torch.tensor(float(overflow)))


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
        take_direct_step(runs[1][1], overflow)
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
    take_direct_step(ready[1])


def test_hooks_of_the_optimizer_and_of_all_optimizers_are_called(ready):
    called = []
    hooks = [
        ready[1].register_step_pre_hook(lambda *_: called.append("pre")),
        ready[1].register_step_post_hook(lambda *_: called.append("post")),
        register_optimizer_step_pre_hook(lambda *_: called.append("every")),
    ]
    try:
        take_direct_step(ready[1])
    finally:
        for hook in hooks:
            hook.remove()
    take_direct_step(ready[1])
    assert sorted(called) == ["every", "post", "pre"]


def test_a_profiler_sees_the_step(ready):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        take_direct_step(ready[1])
    assert any("Optimizer.step#AdamW" in event.key for event in profile.key_averages())


def test_an_lr_scheduler_sees_that_the_step_was_taken(ready):
    scheduler = LambdaLR(ready[1], lambda epoch: 0.5**epoch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_direct_step(ready[1])
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
    take_direct_step(ready[1])
    assert called
