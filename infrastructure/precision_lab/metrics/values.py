"""What a type leaves of the predictions of a value head.

B sequences, S predicted tokens, N valid tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from infrastructure.events.precision_state import PrecisionName
from infrastructure.precision_lab.metrics.resolution import quant_step_median
from infrastructure.precision_lab.metrics.valid import (
    mean_of,
    quantile_of,
    rounded,
    valid_values,
)

DANGER: Mapping[PrecisionName, float] = MappingProxyType({"bf16": 1e4, "fp16": 6e4, "fp32": 1e6})
"""Magnitude of a value from which dtype-rlhf speaks of mantissa starvation. Neighbouring BF16
numbers are 64 apart at 1e4; FP16 ends at 65504; 1e6 in FP32 is arbitrary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueMetrics:
    """Values of the valid tokens of one batch, rounded to the type of the role ``value``.

    Attributes:
        value_max: Largest `|v|` of this batch and of `previous_max`; infinite from the first
            infinite value on, NaN from the first NaN on.
        value_headroom: The type's threshold in `DANGER` minus `value_max`; negative beyond it.
        value_quant_step_median: Median gap between sorted distinct finite values, see
            `quant_step_median`; NaN if no value is finite.
        value_ulp_median: Median distance from `|v|` to the next larger number of the type.
        value_stagnation_rate: Share of tokens whose rounded value equals the one that the same
            token had before the update; None without earlier values.
    """

    value_max: float
    value_headroom: float
    value_quant_step_median: float
    value_ulp_median: float
    value_stagnation_rate: float | None


def measure_values(
    values_BS: Tensor,
    mask_BS: Tensor,
    *,
    precision: PrecisionName,
    previous_BS: Tensor | None = None,
    previous_max: float = 0.0,
) -> ValueMetrics:
    """Measure *values_BS* after rounding to *precision*; waits for the device.

    Args:
        values_BS: Predictions, float.
        mask_BS: Valid tokens, bool; other positions may hold anything.
        precision: Type of the role ``value``.
        previous_BS: Predictions *for the same tokens* before the last update. Those of other
            prompts would measure how prompts differ.
        previous_max: `ValueMetrics.value_max` of the step before.

    Raises:
        MetricError: Shapes differ, or no token is valid.
    """
    (values_N,) = valid_values(mask_BS, values_BS=values_BS)
    rounded_N = rounded(values_N, precision)
    largest = torch.tensor([rounded_N.abs().max().item(), previous_max]).double().max().item()
    finite = bool(rounded_N.isfinite().any())
    return ValueMetrics(
        value_max=largest,
        value_headroom=DANGER[precision] - largest,
        value_quant_step_median=quant_step_median(rounded_N) if finite else torch.nan,
        value_ulp_median=quantile_of(spacing(rounded_N, precision), 0.5),
        value_stagnation_rate=None
        if previous_BS is None
        else stagnation_rate(values_BS, previous_BS, mask_BS, precision=precision),
    )


def stagnation_rate(
    values: Tensor, previous: Tensor, mask: Tensor | None = None, *, precision: PrecisionName
) -> float:
    """Share of entries that are equal in *values* and *previous* after rounding to *precision*.

    For values of the same tokens before and after an update, and for weights likewise (then a
    share near 1 means that updates are smaller than half the distance of neighbouring numbers).

    Args:
        values: After the update, any shape, float.
        previous: Before it, for the same tokens or weights.
        mask: Entries that count, bool; None for all.

    Raises:
        MetricError: Shapes differ, or nothing is valid.
    """
    if mask is None:
        mask = torch.ones_like(values, dtype=torch.bool)
    values_N, previous_N = valid_values(mask, values=values, previous=previous)
    return mean_of(rounded(values_N, precision) == rounded(previous_N, precision))


def spacing(values: Tensor, precision: PrecisionName) -> Tensor:
    """Distance from each `|value|`, rounded to *precision*, to the next larger number; float64.

    At a power of two the next smaller number is half as far away. The largest finite number has
    an infinite distance, infinity and NaN give NaN.
    """
    magnitude = rounded(values.detach().cpu(), precision).abs()
    above = torch.nextafter(magnitude, torch.full_like(magnitude, torch.inf))
    distance = above.double() - magnitude.double()
    return torch.where(magnitude.isfinite(), distance, torch.nan)
