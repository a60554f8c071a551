import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from infrastructure.training.diagnostics.job_copy import JobCopy
from infrastructure.training.diagnostics.preflight.ranges import (
    ModuleRange,
    Ranges,
    _exponents,
    measure_ranges,
)
from infrastructure.training.precision import Precision

Bench = Callable[..., JobCopy]


def overflows(bench: JobCopy, scale: float) -> bool:
    """Whether a real FP16 step overflows at *scale* on any of the batches."""
    for batch in bench.batches:
        model = bench.model()
        (bench.loss(model, batch, Precision.FP16) * scale).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if not all(gradient.isfinite().all() for gradient in gradients):
            return True
    return False


@pytest.mark.process
@pytest.mark.parametrize("name", ["mlp", "norm", "conv", "recurrent", "attention", "shared"])
@pytest.mark.parametrize("power", [0, 5, 11, 19, 27, 33])
def test_largest_safe_scale_is_exact(bench: Bench, name: str, power: int) -> None:
    made = bench(name, 2.0**power)
    scale = measure_ranges(made).largest_safe_scale
    assert scale is not None
    assert not overflows(made, scale)
    assert overflows(made, 2.0 * scale)


@pytest.mark.parametrize("seed", range(8))
def test_largest_safe_scale_is_exact_for_other_weights(bench: Bench, seed: int) -> None:
    made = bench("mlp", seed=seed, rows=8 + 16 * seed)
    scale = measure_ranges(made).largest_safe_scale
    assert scale is not None
    assert (overflows(made, scale), overflows(made, 2.0 * scale)) == (False, True)


def test_gradients_that_stay_fp32_do_not_lower_the_scale(bench: Bench) -> None:
    """The loss's own intermediate gradients are huge, but FP32: the naive maximum is too low."""

    def loss(forward, batch):
        return (forward(batch["x"]).pow(2).mean() * 1e-6) * 1e6

    made = bench("mlp", loss=loss)
    scale = measure_ranges(made).largest_safe_scale
    assert scale is not None
    assert (overflows(made, scale), overflows(made, 2.0 * scale)) == (False, True)


def test_parameter_gradients_count(bench: Bench) -> None:
    """They are sums over the batch, computed in FP16 before the cast: larger than what flows."""
    made = bench("mlp", rows=512)
    flowing = []
    loss = made.loss(model := made.model(), made.batches[0], Precision.FP32)
    loss.backward()
    flowing = max(p.grad.abs().max().item() for p in model.parameters() if p.grad is not None)
    gradient = max(each.gradient for each in measure_ranges(made).modules.values())
    assert gradient >= flowing


def test_gradients_of_fp32_inputs_count(bench: Bench) -> None:
    """A half operation computes them in FP16, before they are cast back."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
        model[1].weight.mul_(1e4)

    def loss(forward, batch):
        return forward(batch["x"][0].long().abs() % 5).pow(2).mean()

    made = bench(model, loss=loss)
    scale = measure_ranges(made).largest_safe_scale
    assert scale is not None
    assert (overflows(made, scale), overflows(made, 2.0 * scale)) == (False, True)


def test_half_tensors_only(bench: Bench) -> None:
    modules = measure_ranges(bench("attention")).modules
    assert "layer.linear1 (Linear)" in modules
    assert "embedding (Embedding)" not in modules


def test_overflow_in_the_forward_pass_names_the_module(bench: Bench) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        model[2].weight.mul_(1e7)
    ranges = measure_ranges(bench(model))
    beyond = [name for name, each in ranges.modules.items() if each.activation > 65504.0]
    assert beyond == ["2 (Linear)", "3 (Tanh)"]  # where it arises, and what would receive it


def test_a_raw_input_beyond_fp16_is_found_at_the_module_that_casts_it(bench: Bench) -> None:
    def loss(forward, batch):
        return forward(batch["x"] * 1e6).pow(2).mean()

    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.mul_(1e-6)
    modules = measure_ranges(bench(model, loss=loss)).modules
    assert modules["0 (Linear)"].activation > 65504.0
    assert modules["1 (Linear)"].activation < 100.0


def test_underflow_is_what_fp16_flushes() -> None:
    """Against torch's own rounding, at every scale, ties included."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4000, generator=generator).exp2() ** 16 * 2.0**-20
    values = torch.cat([values, -values, 2.0 ** torch.arange(-60.0, 0.0), torch.zeros(7)])
    module = ModuleRange(activation=0.0, gradient=1.0, exponents=_exponents(values))
    ranges = Ranges(modules={"m": module}, loss_is_finite=True)
    for power in (-8, 0, 3, 16):
        scale = 2.0**power
        nonzero = values != 0
        flushed = ((values * scale).half() == 0) & nonzero
        assert flushed.any()
        expected = flushed.sum().item() / nonzero.sum().item()
        assert ranges.underflow(scale) == pytest.approx(expected, abs=1e-9)


def test_a_loss_that_is_not_finite_in_fp32_is_reported(bench: Bench) -> None:
    def loss(forward, batch):
        return forward(batch["x"]).pow(2).mean() / 0.0

    assert not measure_ranges(bench("mlp", loss=loss)).loss_is_finite
    assert measure_ranges(bench("mlp")).loss_is_finite


def test_without_a_half_gradient_there_is_no_scale(bench: Bench) -> None:
    model = nn.Sequential(nn.Embedding(5, 4))

    def loss(forward, batch):
        return forward(batch["x"].long().abs() % 5).pow(2).mean()

    ranges = measure_ranges(bench(model, loss=loss))
    assert ranges.modules == {}
    assert ranges.largest_safe_scale is None
    assert math.isclose(ranges.underflow(1.0), 0.0)
