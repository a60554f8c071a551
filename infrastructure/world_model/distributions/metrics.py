"""Scores of predictions against outcomes. Pure functions; float64; N rows, L labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Z_90 = 1.6448536269514722
"""Half the width, in standard deviations, of the central 90 % of a Gaussian."""

CALIBRATION_BINS = 15
SMALLEST_PROBABILITY = 1e-12


def gaussian_nll(mean: Tensor, variance: Tensor, value: Tensor) -> Tensor:
    """Return the negative log-density in nats, elementwise."""
    return 0.5 * (math.log(2 * math.pi) + variance.log() + (value - mean).square() / variance)


def categorical_nll(probabilities_NL: Tensor, label_N: Tensor) -> Tensor:
    """Return the negative log-probability of each row's label in nats, ``[N]``."""
    chosen_N = probabilities_NL.gather(1, label_N[:, None])[:, 0]
    return -chosen_N.clamp(min=SMALLEST_PROBABILITY).log()


def auroc(score_N: Tensor, positive_N: Tensor) -> float:
    """Return the area under the ROC curve; ties count half, NaN if only one class occurs."""
    positives = int(positive_N.sum())
    negatives = len(positive_N) - positives
    if positives == 0 or negatives == 0:
        return math.nan
    _, inverse, counts = score_N.unique(return_inverse=True, return_counts=True)
    average_rank = counts.cumsum(0) - (counts - 1) / 2
    ranks = average_rank.double()[inverse][positive_N.bool()].sum().item()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def expected_calibration_error(
    probability_N: Tensor, happened_N: Tensor, weight_N: Tensor | None = None
) -> float:
    """Return the mean gap between predicted and observed frequency over 15 equally wide bins.

    Args:
        probability_N: Predicted probabilities.
        happened_N: Observed outcomes, bool.
        weight_N: Weight of each row; equal by default.
    """
    weight_N = torch.ones_like(probability_N) if weight_N is None else weight_N
    bins_N = (probability_N * CALIBRATION_BINS).long().clamp(0, CALIBRATION_BINS - 1)
    gap = torch.zeros(CALIBRATION_BINS, dtype=torch.float64)
    gap.index_add_(0, bins_N, weight_N.double() * (probability_N.double() - happened_N.double()))
    return float(gap.abs().sum() / weight_N.double().sum())


def coverage_90(mean: Tensor, variance: Tensor, value: Tensor) -> float:
    """Return the share of values inside the central 90 % interval."""
    return float(((value - mean).abs() <= Z_90 * variance.sqrt()).double().mean())


def clustered_standard_error(value_N: Tensor, groups: Sequence[str]) -> float:
    """Return the standard error of the mean of *value_N*, with dependent rows within each group.

    Infinite with fewer than two groups.
    """
    position: dict[str, int] = {}
    index = torch.tensor([position.setdefault(group, len(position)) for group in groups])
    if len(position) < 2:
        return math.inf
    sums = torch.zeros(len(position), dtype=torch.float64)
    sums.index_add_(0, index, value_N - value_N.mean())
    correction = len(position) / (len(position) - 1)
    return float((sums.square().sum() * correction).sqrt() / len(value_N))
