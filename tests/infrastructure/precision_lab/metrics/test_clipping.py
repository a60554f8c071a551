import math

import pytest
import torch

from infrastructure.precision_lab.metrics.clipping import measure_clipping

MASK = torch.tensor([[True, True, True, True, False]])
OLD = torch.zeros(1, 5)


def test_the_metrics_by_hand() -> None:
    ratios = torch.tensor([[1.0, 1.1, 1.1, 1.3, 9.0]], dtype=torch.float64)
    found = measure_clipping(ratios.log(), OLD, MASK)
    assert found.clip_fraction == 0.25
    assert found.ratio_unique_in_range == 2
    assert found.ratio_one_frac == 0.25
    wide = measure_clipping(ratios.log(), OLD, MASK, clip=0.35)
    assert (wide.clip_fraction, wide.ratio_unique_in_range) == (0.0, 3)


def test_a_half_type_makes_distinct_ratios_equal() -> None:
    policy = torch.tensor([[-2.001, -2.002, -2.003, -2.2, 0.0]])
    old = torch.full((1, 5), -2.0)
    assert measure_clipping(policy, old, MASK).ratio_unique_in_range == 4
    half = measure_clipping(policy, old, MASK, precision="bf16")  # -2, -2, -2, -2.203
    assert half.ratio_unique_in_range == 2
    assert half.ratio_one_frac == 0.75


def test_the_bounds_belong_to_the_range() -> None:
    low = torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    # float32 rounds log 0.5 and log 1.5, so compare with a range a little wider
    found = measure_clipping(low.log(), torch.zeros(1, 2), torch.ones(1, 2) > 0, clip=0.5 + 1e-6)
    assert found.clip_fraction == 0.0
    assert found.ratio_unique_in_range == 2


def test_nan_is_outside_and_equal_log_probs_give_ratio_one() -> None:
    policy = torch.tensor([[math.nan, -1.0, -2.0, -3.0, 0.0]])
    found = measure_clipping(policy, policy, MASK)
    assert found.clip_fraction == pytest.approx(0.25)
    assert found.ratio_one_frac == pytest.approx(0.75)
    assert found.ratio_unique_in_range == 1
