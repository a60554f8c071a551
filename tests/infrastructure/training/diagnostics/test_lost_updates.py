from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from infrastructure.training.diagnostics.lost_updates import (
    Stagnation,
    Underflow,
    measure_stagnation,
    measure_underflow,
)
from infrastructure.training.precision import Precision


def underflow(
    half: list[Tensor | None],
    exact: list[Tensor | None],
    precision: Precision = Precision.FP16,
    scale: float = 1.0,
) -> Underflow | None:
    names = [f"module {index}" for index in range(len(half))]
    return measure_underflow(half, exact, precision=precision, scale=scale, modules=names)


def test_zeros_and_subnormal_numbers_that_only_half_precision_has_are_counted():
    """2**-15 is subnormal in FP16; 1e-9 is half of nothing there; 0 is zero in FP32 too."""
    half = tensor([1.0, 2.0**-15, 0.0, 0.0])
    exact = tensor([1.0, 2.0**-15, 1e-9, 0.0])
    assert underflow([half], [exact]) == Underflow(zero=1 / 3, subnormal=1 / 3, module="module 0")


def test_the_loss_scale_decides_what_is_subnormal():
    exact = tensor([2.0**-15])
    assert underflow([exact * 2.0], [exact], scale=2.0).subnormal == 0.0
    assert underflow([exact], [exact]).subnormal == 1.0


def test_a_gradient_computed_in_fp32_is_not_subnormal_in_half():
    """1e-6 is not a number of FP16: the module was kept in FP32."""
    kept = tensor([1e-6, 1.0])
    assert underflow([kept], [kept]) == Underflow(zero=0.0, subnormal=0.0, module="")


def test_numbers_that_are_subnormal_in_fp32_too_are_not_counted():
    smallest = torch.finfo(torch.bfloat16).tiny
    exact = tensor([smallest / 4, 1.0])
    assert underflow([exact], [exact], Precision.BF16).subnormal == 0.0


def test_the_module_that_loses_most_is_named_and_unused_ones_are_skipped():
    exact = [torch.full((3,), 1e-9), torch.full((2,), 1e-9), None]
    half = [tensor([0.0, 1.0, 1.0]), torch.zeros(2), torch.zeros(2)]
    found = underflow(half, exact)
    assert found == Underflow(zero=3 / 5, subnormal=0.0, module="module 1")
    assert underflow([None], [exact[0]]).zero == 1.0


def test_without_a_gradient_in_fp32_nothing_is_said():
    assert underflow([torch.zeros(2)], [torch.zeros(2)]) is None
    assert underflow([None], [None]) is None


@given(st.lists(st.floats(-(2.0**-10), 2.0**-10, width=32), min_size=1, max_size=20))
def test_what_rounding_to_fp16_loses_is_what_numpy_says_it_loses(values):
    exact = tensor(values)
    rounded = exact.numpy().astype("float16")
    nonzero = int((exact != 0).sum())
    found = underflow([torch.from_numpy(rounded).float()], [exact])
    if not nonzero:
        assert found is None
        return
    lost = sum(1 for half, full in zip(rounded, values, strict=True) if half == 0 and full != 0)
    small = sum(1 for half in rounded if 0 < abs(float(half)) < 2.0**-14)
    assert found.zero == lost / nonzero
    assert found.subnormal == small / nonzero


def test_weights_that_a_step_leaves_alone_are_counted_where_they_have_a_gradient():
    """1e-9 is less than half of the last place of 1.0 in FP32, but not of 0.001."""
    before = [tensor([1.0, 0.001, 1.0, 1.0]), tensor([1.0])]
    after = [before[0] + tensor([1e-9, 1e-9, 0.0, 1.0]), tensor([2.0])]
    moved = [tensor([True, True, False, True]), tensor([True])]
    found = measure_stagnation(before, after, moved, modules=["first", "second"])
    assert found == Stagnation(rate=1 / 4, module="first")


@pytest.mark.parametrize("weights", [[], [torch.ones(2)]], ids=["none", "without a gradient"])
def test_weights_without_a_gradient_do_not_stagnate(weights):
    moved = [torch.zeros(2, dtype=torch.bool) for _ in weights]
    assert measure_stagnation(weights, weights, moved, modules=["a"] * len(weights)) is None
