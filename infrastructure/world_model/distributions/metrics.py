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
SMALLEST_TAIL = 1e-6  # a million degrees of freedom: a Gaussian but for rounding


def student_nll(mean: Tensor, variance: Tensor, tail: Tensor, value: Tensor) -> Tensor:
    """Return the negative log-density in nats, elementwise, of Student's t with this variance.

    Args:
        tail: One over the degrees of freedom, below 1/2, so that the variance exists; 0 is a
            Gaussian. Broadcasts against the others.
    """
    freedom = 1.0 / tail.clamp(min=SMALLEST_TAIL)
    squared = (value - mean).square() / variance
    constant = torch.lgamma(freedom / 2) - torch.lgamma((freedom + 1) / 2)
    constant = constant + 0.5 * (math.pi * (freedom - 2)).log()
    student = (freedom + 1) / 2 * (squared / (freedom - 2)).log1p()
    gaussian = 0.5 * (math.log(2 * math.pi) + squared)
    return 0.5 * variance.log() + torch.where(tail > 0, constant + student, gaussian)


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


def coverage(mean: Tensor, half_width: Tensor, value: Tensor) -> float:
    """Return the share of values within *half_width* of *mean*."""
    return float(((value - mean).abs() <= half_width).double().mean())


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
