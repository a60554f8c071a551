import math

import pytest
import torch

from infrastructure.precision_lab.metrics.valid import MetricError
from infrastructure.precision_lab.metrics.values import (
    measure_values,
    spacing,
    stagnation_rate,
)

MASK = torch.tensor([[True, True, True, False]])


def test_the_metrics_by_hand() -> None:
    values = torch.tensor([[100.0, 100.2, -103.0, math.nan]])
    before = torch.tensor([[100.1, 99.0, -103.0, 5.0]])
    found = measure_values(values, MASK, precision="bf16", previous_BS=before, previous_max=90.0)
    # BF16 numbers from 64 to 128 are 0.5 apart: 100, 100, -103
    assert found.value_max == 103.0
    assert found.value_headroom == 1e4 - 103
    assert found.value_quant_step_median == 203.0
    assert found.value_ulp_median == 0.5
    assert found.value_stagnation_rate == pytest.approx(2 / 3)  # 100.1 rounds to 100 as well
    exact = measure_values(values, MASK, precision="fp32", previous_BS=before)
    assert exact.value_stagnation_rate == pytest.approx(1 / 3)
    assert exact.value_headroom == 1e6 - 103


def test_the_maximum_runs_and_stays_infinite() -> None:
    small = torch.tensor([[1.0, 2.0, -3.0, 0.0]])
    found = measure_values(small, MASK, precision="fp16", previous_max=50.0)
    assert (found.value_max, found.value_headroom) == (50.0, 6e4 - 50)
    assert found.value_stagnation_rate is None
    broken = measure_values(small * 1e5, MASK, precision="fp16")
    assert (broken.value_max, broken.value_headroom) == (math.inf, -math.inf)
    assert math.isnan(broken.value_quant_step_median)  # all three are infinite
    after = measure_values(small, MASK, precision="fp16", previous_max=broken.value_max)
    assert after.value_max == math.inf
    lost = measure_values(small, MASK, precision="fp16", previous_max=math.nan)
    assert math.isnan(lost.value_max)


@pytest.mark.parametrize(
    ("precision", "distance"), [("bf16", 64.0), ("fp16", 8.0), ("fp32", 2**-10)]
)
def test_the_distance_of_neighbours_at_ten_thousand(precision: str, distance: float) -> None:
    found = spacing(torch.tensor([1e4, -1e4]), precision)  # type: ignore[arg-type]
    assert found.tolist() == [distance, distance]


def test_the_distance_at_the_ends_of_a_type() -> None:
    found = spacing(torch.tensor([0.0, 65504.0, math.inf, math.nan]), "fp16").tolist()
    assert found[:2] == [2**-24, math.inf]
    assert all(map(math.isnan, found[2:]))


def test_stagnation_of_weights_needs_no_mask() -> None:
    weights = torch.tensor([1.0, 0.5, 0.25, 0.0])
    after = weights + 1e-3  # half of the distance to the next number of BF16: 2^-8, 2^-9, 2^-10
    assert stagnation_rate(after, weights, precision="bf16") == 0.5
    assert stagnation_rate(after, weights, precision="fp32") == 0.0


def test_values_of_other_tokens_are_refused() -> None:
    with pytest.raises(MetricError, match="previous has the shape"):
        measure_values(torch.ones(1, 4), MASK, precision="fp32", previous_BS=torch.ones(1, 3))
