from __future__ import annotations

import copy
import math
import random

import pytest
import torch
from torch import nn

from infrastructure.events.event import BaselineCompared, Notice, PrecisionChanged
from infrastructure.training.diagnostics import Fp32Shadow
from infrastructure.training.precision import Precision
from tests.infrastructure.training.overflowing import BackwardScaled, Scaled
from tests.infrastructure.training.uncopyable import UNCOPYABLE

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Keeps a buffer and an attribute that every forward pass moves, and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 16)
        self.norm = nn.BatchNorm1d(16)
        self.calls = 0
        self.seen = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(random.random())
        x = self.norm(self.inner(x))
        return x + 0.01 * torch.randn(x.shape, dtype=torch.float32)


def net(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 16), *layers, nn.SiLU(), nn.Linear(16, 1))


@pytest.fixture
def compare(loss_fn, batch):
    def compare(
        model: nn.Module, precision=Precision.FP16, loss_scale=256.0, batch=batch, loss=loss_fn
    ) -> BaselineCompared:
        shadow = Fp32Shadow(model, loss, batch, CPU)
        return shadow.compare(step=7, precision=precision, loss_scale=loss_scale)

    return compare


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_a_healthy_model_rounds_a_little_and_hardly_underflows(compare, precision):
    said = compare(net(nn.Dropout(0.5)), precision)
    rounding = torch.finfo(precision.compute).eps
    assert (said.step, said.precision, said.loss_scale) == (7, precision.value, 256.0)
    assert 0 < said.loss_error < 4 * rounding
    assert 0 < said.gradient_error < 4 * rounding
    assert said.gradient_cosine == pytest.approx(1.0, abs=1e-4)
    assert said.underflow < 0.02
    assert said.nonfinite_module == ""
    assert "Linear" in said.worst_module
    assert said.seconds > 0
    assert said.fp32_seconds > 0


def test_the_fp32_loss_is_the_one_fp32_computes(compare, loss_fn, batch):
    model = net()
    assert compare(model).fp32_loss == loss_fn(model, batch).item()


def test_an_overflow_forward_is_found_in_its_module(compare):
    said = compare(net(Scaled(1e5), Scaled(1e-5)))
    assert math.isfinite(said.fp32_loss)
    assert not math.isfinite(said.loss)
    assert said.loss_error == math.inf
    assert "1 (Scaled)" in said.nonfinite_module


def test_an_overflow_backward_is_found_in_its_module(compare):
    said = compare(net(BackwardScaled(1e6)))
    assert said.loss_error < 0.01
    assert said.gradient_error == math.inf
    assert said.gradient_cosine is None
    assert "1 (BackwardScaled)" in said.nonfinite_module


def test_gradients_lost_in_fp16_are_counted(compare):
    faint = net(BackwardScaled(1e-12))
    said = compare(faint)
    lost = faint[0].weight.numel() + faint[0].bias.numel()
    assert said.underflow == lost / sum(p.numel() for p in faint.parameters())
    assert said.blocked == said.underflow, "all that these parameters have"
    assert compare(net()).underflow == compare(net()).blocked == 0.0


def test_rounding_is_traced_to_the_module_it_comes_from(compare):
    """Numbers near 8192 are 8 apart in FP16: what is added to 8192 is lost."""

    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 8192.0) - 8192.0

    said = compare(net(Shifted()))
    assert said.loss_error > 0.05
    assert said.gradient_error > 0.05
    assert said.nonfinite_module == ""
    assert said.worst_module == "3 (Linear)"


def test_nan_in_the_data_is_not_blamed_on_the_precision(compare, batch):
    poisoned = {**batch, "x": batch["x"].clone()}
    poisoned["x"][3, 2] = math.nan
    said = compare(net(), batch=poisoned)
    assert math.isnan(said.fp32_loss)
    assert math.isnan(said.loss_error)
    assert said.gradient_error is None
    assert "0 (Linear)" in said.nonfinite_module


def test_the_model_is_exactly_as_it_was(compare):
    model = Counting().train()
    model(torch.randn(8, 4))
    before = copy.deepcopy(model.state_dict())
    attributes = model.calls, list(model.seen)
    weight = next(model.parameters())
    weight.grad = torch.ones_like(weight)
    generators = random.getstate(), torch.get_rng_state()

    said = compare(model, loss=lambda forward, batch: forward(batch["x"]).square().mean())

    assert said.comparable
    assert said.loss_error < 0.01  # both passes drew the same numbers
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.calls, model.seen) == attributes
    assert model.training
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert (random.getstate(), torch.get_rng_state().tolist()) == (
        generators[0],
        generators[1].tolist(),
    )


def test_numbers_drawn_in_half_precision_prove_nothing(compare):
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    said = compare(net(Noisy()))
    assert not said.comparable
    assert math.isnan(said.loss_error)
    assert said.gradient_error is said.underflow is None


def test_other_weights_give_another_loss(compare, loss_fn, batch):
    """The shadow sees the weights of the moment, not those of its making."""
    model = net()
    shadow = Fp32Shadow(model, loss_fn, batch, CPU)
    before = shadow.compare(step=1, precision=Precision.FP16, loss_scale=1.0)
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    after = shadow.compare(step=2, precision=Precision.FP16, loss_scale=1.0)
    assert after.fp32_loss == loss_fn(model, batch).item() != before.fp32_loss


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_training_ends_bitwise_the_same_with_the_shadow_and_without(
    train_in, make_job, tmp_path, precision, accumulate
):
    weights = []
    for name, interval in (("with", 1), ("without", 0)):
        torch.manual_seed(7)
        model = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.SiLU(), nn.Linear(16, 1)
        )
        job = make_job(epochs=3, accumulate=accumulate, model=model)
        result, events = train_in(
            job, tmp_path / name, precision=precision, baseline_interval_steps=interval
        )
        weights.append({**job.model.state_dict(), "primary": torch.tensor(result.evaluation.value)})
        assert bool([e for e in events if isinstance(e, BaselineCompared)]) == bool(interval)
    with_shadow, without = weights
    assert all(torch.equal(with_shadow[name], without[name]) for name in without)


def test_nothing_is_compared_under_fp32(train_in, make_job, tmp_path):
    _, events = train_in(make_job(), tmp_path, precision="fp32", baseline_interval_steps=1)
    assert not [e for e in events if isinstance(e, BaselineCompared)]


def test_comparisons_carry_the_step_and_the_scale_in_force(train_in, make_job, tmp_path):
    _, events = train_in(make_job(epochs=3), tmp_path, baseline_interval_steps=5)
    [first, *_] = [e for e in events if isinstance(e, BaselineCompared)]
    [begun] = [e for e in events if isinstance(e, PrecisionChanged)]
    assert first.step == 5
    assert first.loss_scale == begun.loss_scale == 256.0


@pytest.mark.parametrize("uncopyable", UNCOPYABLE)
def test_a_model_that_cannot_be_copied_costs_a_notice_and_no_training(
    train_in, make_job, tmp_path, uncopyable
):
    job = make_job(epochs=3, model=uncopyable())
    result, events = train_in(job, tmp_path, baseline_interval_steps=1)
    assert result.outcome == "done"
    [notice] = [e for e in events if isinstance(e, Notice)]
    assert notice.event == "baseline_not_measured"
    assert f"'last' of the model ({uncopyable.__name__})" in notice.fields["error"]
