import math

import pytest
import torch

from infrastructure.precision_lab.metrics.kl import (
    exact_kl_penalty_mean,
    kl_penalty,
    log_ratio,
    measure_kl,
)
from infrastructure.precision_lab.metrics.valid import MetricError

MASK = torch.tensor([[False, True, True], [True, True, False]])
# Powers of two, so that every difference is exact; what is masked must not count.
POLICY = torch.tensor([[math.nan, -1.0, -2.0], [-0.5, -1.0, math.inf]])
REFERENCE = torch.tensor([[0.0, -1.5, -2.0], [-0.25, -13.0, 0.0]])


def test_the_metrics_by_hand() -> None:
    found = measure_kl(POLICY, REFERENCE, MASK)
    # r = 0.5, 0, -0.25, 12; the last is clamped to 10 in the penalty alone
    penalties = [math.exp(0.5) - 1.5, 0.0, math.exp(-0.25) - 0.75, math.exp(10) - 11]
    assert found.valid_token_count == 4
    assert found.kl_mc_mean == 12.25 / 4
    assert found.kl_penalty_mean == pytest.approx(sum(penalties) / 4, rel=1e-6)
    assert found.kl_penalty_max == pytest.approx(penalties[3], rel=1e-6)
    # position 0.99 * 3 = 2.97 between the third and the fourth of the sorted penalties
    p99 = 0.03 * penalties[0] + 0.97 * penalties[3]
    assert found.kl_penalty_p99 == pytest.approx(p99, rel=1e-6)
    mean = 12.25 / 4
    squares = sum((r - mean) ** 2 for r in (0.5, 0.0, -0.25, 12.0))
    assert found.log_ratio_std == pytest.approx(math.sqrt(squares / 3))
    assert found.log_ratio_abs_max == 12.0
    assert found.log_ratio_near_zero_frac == 0.25
    assert found.kl_penalty_near_zero_frac == 0.25
    assert found.log_ratio_clamped_frac == 0.25


def test_both_log_probs_are_rounded_before_they_are_subtracted() -> None:
    policy, reference = torch.tensor([-3.0 - 2**-8]), torch.tensor([-3.0 - 2**-7])
    # BF16 numbers from 2 to 4 are 2^-6 apart; half a step rounds to the even one, -3
    assert log_ratio(policy, reference, "bf16").item() == 0.0
    assert log_ratio(policy, reference, "fp16").item() == 2**-8
    assert log_ratio(policy, reference, "fp32").item() == 2**-8


def test_the_penalty_cancels_in_bf16_as_the_formula_does() -> None:
    ratio = torch.tensor([2**-9, 2**-6], dtype=torch.bfloat16)
    # exp(2^-9) is 1.00195, between 1 and 1 + 2^-7: rounded to 1. exp(2^-6) is 1.01575: 1 + 2^-6.
    assert kl_penalty(ratio).tolist() == [-(2**-9), 0.0]
    exact = kl_penalty(ratio.double())
    assert exact.tolist() == pytest.approx([2**-19, 2**-13], rel=0.01)


def test_the_mean_is_over_all_tokens_and_keeps_small_values() -> None:
    policy = torch.full((1, 5000), -1.0)
    reference = policy - 2**-20
    found = measure_kl(policy, reference, torch.ones(1, 5000, dtype=torch.bool))
    assert found.valid_token_count == 5000  # BF16 would count 4992
    assert found.kl_mc_mean == 2**-20
    half = measure_kl(policy, reference, torch.ones_like(policy) > 0, precision="bf16")
    assert half.kl_mc_mean == 0.0
    assert half.log_ratio_near_zero_frac == 1.0


def test_the_exact_penalty_of_a_small_ratio_has_all_digits() -> None:
    policy, reference = torch.tensor([[-1.0]]), torch.tensor([[-1.0 - 2**-20]])
    mask = torch.tensor([[True]])
    assert exact_kl_penalty_mean(policy, reference, mask) == pytest.approx(2**-41, rel=1e-4)
    far = torch.tensor([[-100.0]])
    assert exact_kl_penalty_mean(policy, far, mask) == pytest.approx(math.exp(10) - 11)


def test_one_token_has_no_spread_and_nan_shows() -> None:
    one = torch.tensor([[True, False, False]])
    assert measure_kl(REFERENCE[:1], REFERENCE[:1], one).log_ratio_std == 0.0
    assert math.isnan(measure_kl(POLICY, REFERENCE, torch.ones(2, 3) > 0).kl_penalty_mean)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(MetricError, match="no token"):
        measure_kl(POLICY, REFERENCE, torch.zeros(2, 3) > 0)
    with pytest.raises(MetricError, match=r"log_probs_BS has the shape \(2, 2\)"):
        measure_kl(POLICY[:, 1:], REFERENCE, MASK)
    with pytest.raises(MetricError, match="pass bool"):
        measure_kl(POLICY, REFERENCE, MASK.float())
