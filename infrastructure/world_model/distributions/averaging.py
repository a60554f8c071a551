"""Averages predictions over values of an input that is not known.

Shapes: M rows, R predictions of each, N rows of a whole, C dimensions and L labels as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from infrastructure.world_model.distributions.box_calibration import COVERAGE
from infrastructure.world_model.distributions.metrics import Z_90
from infrastructure.world_model.distributions.predictive import (
    BoxDistribution,
    DiscreteDistribution,
    TargetDistribution,
    TargetDistributions,
)

_BISECTIONS = 12  # of an interval that is at most a few times too wide


def average_rows(
    predicted: TargetDistributions, weights_MR: Tensor
) -> dict[str, TargetDistribution]:
    """Mix each R rows in turn into one.

    Probabilities are averaged. Of numbers the mixture has the mean and the variance; its interval
    contains as much of the mixture as each interval of a row does of a Gaussian.

    Args:
        weights_MR: Weight of each row of *predicted*, float64; sums are 1.
    """

    def average(rows: Tensor) -> Tensor:
        mean: Tensor = torch.einsum(
            "mr...,mr->m...", rows.unflatten(0, weights_MR.shape), weights_MR
        )
        return mean

    averaged: dict[str, TargetDistribution] = {}
    for name, each in predicted.items():
        if isinstance(each, DiscreteDistribution):
            averaged[name] = DiscreteDistribution(probabilities=average(each.probabilities))
            continue
        mean_MC = average(each.mean)
        offset = each.mean - mean_MC.repeat_interleave(weights_MR.shape[1], 0)
        between_MC = average(offset.square())
        averaged[name] = replace(
            each,
            mean=mean_MC,
            variance=average(each.variance) + between_MC,
            half_width=_half_width(offset, each.half_width_90(), average),
        )
    return averaged


def _half_width(offset: Tensor, half_width: Tensor, average: Callable[[Tensor], Tensor]) -> Tensor:
    """Half the width of a mixture's interval around its mean, ``[M, C]``, by bisection.

    Args:
        offset, half_width: Mean of each row less that of its mixture, and half the width of its
            interval, ``[M * R, C]``.
    """
    deviation = (half_width / Z_90).clamp(min=1e-300)
    share = average(torch.ones_like(offset))
    rows = len(offset) // len(share)
    low_MC = torch.zeros_like(share)
    high_MC: Tensor = (offset.abs() + half_width).unflatten(0, (len(share), rows)).amax(1)
    for _ in range(_BISECTIONS):
        middle_MC = (low_MC + high_MC) / 2
        edge = middle_MC.repeat_interleave(rows, 0)
        above, below = (torch.special.ndtr((each - offset) / deviation) for each in (edge, -edge))
        enough_MC = average(above - below) >= COVERAGE * share
        high_MC = torch.where(enough_MC, middle_MC, high_MC)
        low_MC = torch.where(enough_MC, low_MC, middle_MC)
    return high_MC


def replace_rows(
    predicted: TargetDistributions, is_replaced_N: Tensor, parts: Sequence[TargetDistributions]
) -> dict[str, TargetDistribution]:
    """Put the rows of *parts*, one after the other, where *is_replaced_N* is True."""

    def put(whole: Tensor, news: list[Tensor]) -> Tensor:
        copy = whole.clone()
        copy[is_replaced_N] = torch.cat(news)
        return copy

    replaced: dict[str, TargetDistribution] = {}
    for name, first in predicted.items():
        others = [part[name] for part in parts]
        if isinstance(first, DiscreteDistribution):
            labels = [each for each in others if isinstance(each, DiscreteDistribution)]
            probabilities_NL = put(first.probabilities, [each.probabilities for each in labels])
            replaced[name] = DiscreteDistribution(probabilities=probabilities_NL)
            continue
        boxes = [each for each in others if isinstance(each, BoxDistribution)]
        replaced[name] = replace(
            first,
            mean=put(first.mean, [each.mean for each in boxes]),
            variance=put(first.variance, [each.variance for each in boxes]),
            half_width=put(first.half_width_90(), [each.half_width_90() for each in boxes]),
        )
    return replaced
