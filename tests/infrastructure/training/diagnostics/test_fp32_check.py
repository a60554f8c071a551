from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from infrastructure.training.diagnostics import (
    HalfPrecisionInModelError,
    check_fp32_step,
)
from infrastructure.training.precision import UnknownModuleError

CPU = torch.device("cpu")


class OwnAutocast(nn.Module):
    def __init__(self, enabled=True):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.enabled = enabled

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            return self.linear(x).float()


class HalfBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.half().float()


def test_an_honest_model_passes_and_is_left_alone(make_job):
    job = make_job()
    before = {k: v.clone() for k, v in job.model.state_dict().items()}
    state, python_state = torch.get_rng_state(), random.getstate()
    check_fp32_step(job, CPU)
    assert all(torch.equal(v, before[k]) for k, v in job.model.state_dict().items())
    assert all(p.grad is None for p in job.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    assert not job.model._forward_hooks


def test_an_autocast_inside_the_model_is_named(make_job):
    model = nn.Sequential(nn.Linear(4, 4), OwnAutocast())
    with pytest.raises(HalfPrecisionInModelError, match=r"1 \(OwnAutocast\)|1\.linear \(Linear\)"):
        check_fp32_step(make_job(model=model), CPU)
    check_fp32_step(make_job(model=nn.Sequential(OwnAutocast(enabled=False))), CPU)


def test_half_precision_in_loss_or_backward_is_found(make_job):
    def half_loss(forward, batch):
        return (forward(batch["x"]).half() ** 2).float().mean()

    def half_backward(forward, batch):
        return HalfBackward.apply(forward(batch["x"])).square().mean()

    for loss in (half_loss, half_backward):
        with pytest.raises(HalfPrecisionInModelError, match="the loss"):
            check_fp32_step(make_job(loss=loss), CPU)


def test_a_module_to_keep_in_fp32_must_exist(make_job):
    job = make_job()
    check_fp32_step(replace(job, keep_fp32=["0", "3"]), CPU)
    with pytest.raises(UnknownModuleError, match="keep_fp32 names '9'"):
        check_fp32_step(replace(job, keep_fp32=["9"]), CPU)
    assert not any("forward" in vars(module) for module in job.model.modules())


def test_a_module_kept_in_fp32_that_is_never_called_is_named(make_job):
    class Attention(nn.Module):
        """Uses the weight of its inner module without a call, and leaves another out."""

        def __init__(self):
            super().__init__()
            self.called, self.read = nn.Linear(4, 4), nn.Linear(4, 1)
            self.unused = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x):
            return nn.functional.linear(self.called(x), self.read.weight)

    job = make_job(model=nn.Sequential(Attention()))
    for names, idle in (
        (["0.called", "0.read", "0.unused"], ["0.read", "0.unused"]),
        (["0"], None),
        (["0.called"], None),
        ([], None),
    ):
        with capture_logs() as logs:
            check_fp32_step(replace(job, keep_fp32=names), CPU)
        found = [entry["modules"] for entry in logs if entry["event"] == "keep_fp32_without_effect"]
        assert found == ([] if idle is None else [idle])
    assert not job.model[0].called._forward_pre_hooks
