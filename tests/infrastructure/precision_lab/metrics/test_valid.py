import math

import pytest
import torch

from infrastructure.precision_lab.metrics.valid import mean_of, quantile_of, rounded, valid_values


def test_the_valid_values_keep_order_and_dtype() -> None:
    mask = torch.tensor([[True, False], [False, True]])
    values = torch.tensor([[1.0, math.nan], [2.0, 3.0]], dtype=torch.float16, requires_grad=True)
    (found,) = valid_values(mask, values=values)
    assert found.tolist() == [1.0, 3.0]
    assert found.dtype == torch.float16
    assert not found.requires_grad


def test_rounding_is_to_nearest_and_ties_to_even() -> None:
    values = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 65520.0])
    assert rounded(values, "bf16").tolist() == [1.0, 1 + 2**-6, 65536.0]
    assert rounded(values, "fp16").tolist() == [1 + 2**-8, 1 + 3 * 2**-8, math.inf]


def test_statistics_are_float64() -> None:
    assert mean_of(torch.tensor([2.0**24, 1.0, 1.0], dtype=torch.float32)) == (2**24 + 2) / 3
    assert mean_of(torch.tensor([True, False, False, True])) == 0.5
    assert quantile_of(torch.tensor([4.0, 1.0, 2.0], dtype=torch.float16), 0.25) == 1.5
    assert math.isnan(quantile_of(torch.tensor([1.0, math.nan]), 0.5))


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="fp8"):
        rounded(torch.ones(1), "fp8")  # type: ignore[arg-type]
