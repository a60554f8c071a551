from collections.abc import Callable

import pytest
import torch
from torch import nn

from infrastructure.training.diagnostics.job_copy import JobCopy
from infrastructure.training.diagnostics.preflight.cost import gradient_error, saved_bytes
from infrastructure.training.precision import Precision

Bench = Callable[..., JobCopy]


def test_saved_bytes_are_counted_exactly(bench: Bench) -> None:
    """Linear keeps its input, SiLU its input; pow keeps the model's output; counted by hand."""
    model = nn.Sequential(nn.Linear(8, 32, bias=False), nn.SiLU(), nn.Linear(32, 4, bias=False))
    made = bench(model, rows=16)
    rows, wide, out = 16, 32, 4
    kept_fp32 = rows * wide + rows * wide + rows * out  # SiLU's input, its output, the output
    assert saved_bytes(made, Precision.FP32) == 4 * kept_fp32
    # Of the casts the input and the second weight; no gradient flows through the first.
    cast = rows * 8 + wide * out
    kept_half = rows * wide + rows * wide + cast
    assert saved_bytes(made, Precision.BF16) == 2 * kept_half + 4 * rows * out


def test_gradient_error_grows_with_coarser_arithmetic(bench: Bench) -> None:
    made = bench("mlp")
    fp16 = gradient_error(made, Precision.FP16, 1024.0)
    bf16 = gradient_error(made, Precision.BF16, 1.0)
    assert fp16 is not None
    assert bf16 is not None
    assert 0.0 < fp16 < 2e-3  # eps 2**-11
    assert 4 * fp16 < bf16 < 2e-2  # eps 2**-8


@pytest.mark.parametrize(("scale", "error"), [(2.0**40, float("inf")), (2.0**-24, 1.0)])
def test_overflow_and_underflow_show(bench: Bench, scale: float, error: float) -> None:
    assert gradient_error(bench("mlp"), Precision.FP16, scale) == pytest.approx(error, rel=0.01)


class Noisy(nn.Module):
    """Adds noise to its input, or masks its output by other numbers in half precision."""

    def __init__(self, noisy_input: bool) -> None:
        super().__init__()
        self.linear, self.noisy_input = nn.Linear(8, 4), noisy_input

    def forward(self, x):
        if self.noisy_input:
            return self.linear(x + torch.randn_like(x))
        y = self.linear(x)
        if y.dtype != torch.float32:
            torch.rand(1)
        return y * (torch.rand_like(y) > 0.5)


def test_noise_that_is_drawn_alike_is_compared(bench: Bench) -> None:
    error = gradient_error(bench(Noisy(noisy_input=True)), Precision.BF16, 1.0)
    assert error is not None
    assert error < 0.02


def test_noise_that_is_drawn_otherwise_is_not_taken_for_an_error(bench: Bench) -> None:
    assert gradient_error(bench(Noisy(noisy_input=False)), Precision.BF16, 1.0) is None


def test_dropout_is_switched_off(bench: Bench) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    error = gradient_error(bench(model), Precision.BF16, 1.0)
    assert error is not None
    assert error < 0.05
