import math

import pytest
import torch

from infrastructure.precision_lab.metrics.resolution import (
    lost_distinctions,
    measure_reward_resolution,
    order_kept,
    quant_step_median,
)
from infrastructure.precision_lab.metrics.valid import MetricError


def test_the_gaps_by_hand() -> None:
    rewards = torch.tensor([[0.0, 1.0, 1.0], [8.0, 3.0, math.inf]])
    found = measure_reward_resolution(rewards)
    # distinct 0, 1, 3, 8; gaps 1, 2, 5
    assert found.reward_resolution_median == 2.0
    assert found.reward_resolution_p10 == pytest.approx(1.2)
    assert found.reward_resolution_min == 1.0
    assert found.reward_unique_count == 4
    assert found.reward_range == 8.0


def test_the_median_of_an_even_number_of_gaps_is_between_them() -> None:
    assert quant_step_median(torch.tensor([0.0, 1.0, 4.0])) == 2.0


def test_gaps_of_half_rewards_are_exact() -> None:
    rewards = torch.tensor([1.0, 1.001, 1.002, 1.01]).bfloat16()  # 1, 1, 1, 1 + 2^-7
    found = measure_reward_resolution(rewards)
    assert found.reward_resolution_median == 2**-7
    assert found.reward_unique_count == 2


def test_equal_rewards_have_an_infinite_resolution() -> None:
    found = measure_reward_resolution(torch.full((4,), 0.5))
    assert found.reward_resolution_median == math.inf
    assert found.reward_resolution_p10 == math.inf
    assert found.reward_resolution_min == math.inf
    assert found.reward_unique_count == 1


def test_rewards_that_all_overflowed_have_no_resolution() -> None:
    found = measure_reward_resolution(torch.tensor([math.nan, math.inf]))
    assert math.isnan(found.reward_resolution_median)
    assert math.isnan(found.reward_range)
    assert found.reward_unique_count == 0
    with pytest.raises(MetricError, match="no value"):
        quant_step_median(torch.tensor([math.nan]))


def test_lost_distinctions_count_pairs() -> None:
    values = torch.tensor([1.0, 1.001, 1.002, 1.01, 1.01])  # distinct: four; three become 1
    found = lost_distinctions(values, "bf16")
    assert found.tied_frac == 3 / 6
    assert found.unique_frac == 2 / 4
    assert lost_distinctions(values, "fp32").tied_frac == 0.0
    with pytest.raises(MetricError, match="distinct value"):
        lost_distinctions(torch.ones(3), "bf16")


def test_order_kept_counts_the_pairs_that_are_distinct_in_exact() -> None:
    exact = torch.tensor([1.0, 2.0, 3.0, 3.0])  # five distinct pairs
    assert order_kept(exact * 2, exact) == 1.0
    assert order_kept(torch.tensor([1.0, 1.0, 3.0, 0.0]), exact) == 2 / 5
    with pytest.raises(MetricError, match="the shapes differ"):
        order_kept(exact[:2], exact)
    with pytest.raises(MetricError, match="nothing to order"):
        order_kept(exact, torch.ones(4))
