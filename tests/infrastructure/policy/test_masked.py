import math

import pytest
import torch

from infrastructure.policy.masked import (
    TokenValueError,
    bounded_ratio,
    check_token_values,
    masked_log_ratio,
    masked_mean,
)

MASK_BS = torch.tensor([[True, True, False], [False, False, False]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_precisions_are_refused_with_the_remedy(dtype):
    with pytest.raises(TokenValueError, match=r"log_probs_BS is .*before log_softmax"):
        check_token_values(MASK_BS, log_probs_BS=torch.zeros(2, 3, dtype=dtype))


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (2,), (2, 3, 1)])
def test_a_wrong_shape_is_named(shape):
    with pytest.raises(TokenValueError, match=r"values_BS .*\(2, 3\)"):
        check_token_values(MASK_BS, values_BS=torch.zeros(shape))


@pytest.mark.parametrize("mask", [MASK_BS.float(), MASK_BS[0]])
def test_a_mask_is_bool_with_two_dimensions(mask):
    with pytest.raises(TokenValueError, match="pass bool"):
        check_token_values(mask)


def test_float64_and_values_per_sequence_pass():
    check_token_values(MASK_BS, a_BS=torch.zeros(2, 3).double(), b_B=torch.zeros(2))


def test_mean_counts_valid_positions_and_empty_rows_are_zero():
    values_BS = torch.tensor([[1.0, 2.0, 30.0], [40.0, 50.0, 60.0]])
    assert masked_mean(values_BS, MASK_BS) == 1.5
    assert masked_mean(values_BS, MASK_BS, dim=1).tolist() == [1.5, 0.0]
    assert masked_mean(values_BS, torch.zeros_like(MASK_BS)) == 0


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_masked_garbage_reaches_neither_value_nor_gradient(garbage):
    values_BS = torch.tensor([[1.0, 2.0, garbage], [garbage] * 3], requires_grad=True)
    base_BS = torch.tensor([[0.5, 0.5, garbage], [garbage] * 3])
    ratio_BS = bounded_ratio(masked_log_ratio(values_BS, base_BS, MASK_BS))
    mean = masked_mean(ratio_BS, MASK_BS)
    mean.backward()
    assert mean.item() == pytest.approx((math.exp(0.5) + math.exp(1.5)) / 2)
    assert values_BS.grad.flatten().tolist() == pytest.approx(
        [math.exp(0.5) / 2, math.exp(1.5) / 2, 0, 0, 0, 0]
    )


def test_ratio_is_bounded_and_shows_nan():
    ratio = bounded_ratio(torch.tensor([50.0, -math.inf, math.nan, 0.0]))
    assert ratio[:2].tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    assert ratio[2].isnan()
    assert ratio[3] == 1
