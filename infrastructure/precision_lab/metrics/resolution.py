"""Gaps between distinct numbers: how finely rewards or values are told apart.

N finite numbers. The gaps of a batch depend on its size and range too, so a figure is a statement
about a type only beside that of the same batch in FP32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.events.precision_state import PrecisionName
from infrastructure.precision_lab.metrics.valid import MetricError, mean_of, quantile_of, rounded


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardResolution:
    """Gaps between sorted distinct finite rewards; computed in float64.

    Gaps are infinite below two distinct rewards. Without a finite reward all figures are NaN and
    the count is 0.

    Attributes:
        reward_resolution_median: Median gap (the mean of the two middle ones of an even number).
        reward_resolution_p10: 10 % quantile of the gaps, interpolated linearly.
        reward_resolution_min: Smallest gap; depends strongly on the size of the batch.
        reward_unique_count: Number of distinct rewards.
        reward_range: Largest minus smallest reward.
    """

    reward_resolution_median: float
    reward_resolution_p10: float
    reward_resolution_min: float
    reward_unique_count: int
    reward_range: float


def measure_reward_resolution(rewards: Tensor) -> RewardResolution:
    """Measure how finely *rewards*, any shape, float, are told apart; waits for the device.

    Pass the rewards in the type in which the reward role returned them: every half number is
    exact in float64, so the cast there adds nothing. Non-finite rewards are left out.
    """
    rewards_N = _finite_of(rewards)
    if not rewards_N.numel():
        return RewardResolution(
            reward_resolution_median=math.nan,
            reward_resolution_p10=math.nan,
            reward_resolution_min=math.nan,
            reward_unique_count=0,
            reward_range=math.nan,
        )
    gaps = gaps_of(rewards_N)
    return RewardResolution(
        reward_resolution_median=_gap(gaps, 0.5),
        reward_resolution_p10=_gap(gaps, 0.1),
        reward_resolution_min=gaps.min().item() if gaps.numel() else math.inf,
        reward_unique_count=gaps.numel() + 1,
        reward_range=(rewards_N.max() - rewards_N.min()).item(),
    )


def quant_step_median(values: Tensor) -> float:
    """Median gap between sorted distinct finite *values*, float64; infinite below two of them.

    Raises:
        MetricError: No value is finite.
    """
    return _gap(gaps_of(finite_values(values, "value")), 0.5)


def gaps_of(values_N: Tensor) -> Tensor:
    """Differences of neighbouring distinct values, float64, one fewer than distinct values."""
    return torch.diff(values_N.double().unique())


def finite_values(values: Tensor, name: str) -> Tensor:
    """The finite ones of *values*, flat, float64, on the host.

    Raises:
        MetricError: There are none; the message uses *name*.
    """
    values_N = _finite_of(values)
    if not values_N.numel():
        raise MetricError(f"no {name} is finite, so that they have no resolution")
    return values_N


@dataclass(frozen=True, kw_only=True, slots=True)
class LostDistinctions:
    """Distinct numbers that a type makes equal.

    Attributes:
        tied_frac: Share of the pairs of distinct numbers that are equal after rounding.
        unique_frac: Distinct rounded numbers divided by distinct numbers.
    """

    tied_frac: float
    unique_frac: float


def lost_distinctions(values: Tensor, precision: PrecisionName) -> LostDistinctions:
    """How many pairs of distinct finite *values* rounding to *precision* makes equal.

    Unlike gaps, it does not depend on the range or on values that are equal in FP32 already.

    Raises:
        MetricError: Fewer than two distinct values are finite.
    """
    unique_N = finite_values(values, "value").unique()
    if unique_N.numel() < 2:
        raise MetricError("only one distinct value: there is nothing to distinguish")
    counts = rounded(unique_N, precision).double().unique(return_counts=True)[1].double()
    pairs = unique_N.numel() * (unique_N.numel() - 1) / 2
    return LostDistinctions(
        tied_frac=(counts * (counts - 1) / 2).sum().item() / pairs,
        unique_frac=counts.numel() / unique_N.numel(),
    )


def order_kept(values: Tensor, exact: Tensor) -> float:
    """Share of the pairs distinct in *exact* whose order *values*, of its shape, keeps.

    Computed in float64 over all pairs: N² numbers. A pair that *values* makes equal is not kept.

    Raises:
        MetricError: Shapes differ, or *exact* has no distinct pair.
    """
    if values.shape != exact.shape:
        raise MetricError(f"the shapes differ: {tuple(values.shape)} and {tuple(exact.shape)}")
    signs, exact_signs = (
        torch.sign(flat[:, None] - flat[None, :])
        for flat in (tensor.detach().cpu().double().flatten() for tensor in (values, exact))
    )
    distinct = exact_signs != 0
    if not distinct.any():
        raise MetricError("only one distinct value: there is nothing to order")
    return mean_of(signs[distinct] == exact_signs[distinct])


def _finite_of(values: Tensor) -> Tensor:
    values_N = values.detach().cpu().double().flatten()
    return values_N[values_N.isfinite()]


def _gap(gaps: Tensor, share: float) -> float:
    return quantile_of(gaps, share) if gaps.numel() else math.inf
