"""Losses, errors and areas, on arrays.

Shapes: N rows, L labels, D dimensions, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

SMALLEST_PROBABILITY = 1e-12


def log_loss(probability_NL: Numbers, label_N: NDArray[np.int64]) -> Numbers:
    """Negative log-probability of each row's label in nats, ``[N]``."""
    chosen_N = probability_NL[np.arange(len(label_N)), label_N]
    return -np.log(np.maximum(chosen_N, SMALLEST_PROBABILITY))


def clustered_error(value_N: Numbers, groups: Sequence[str]) -> float:
    """Standard error of the mean of *value_N*, whose rows depend on each other in each group."""
    index_N = np.unique(np.array(groups), return_inverse=True)[1]
    sums_G = np.bincount(index_N, weights=value_N - value_N.mean())
    if len(sums_G) < 2:
        return math.inf
    correction = len(sums_G) / (len(sums_G) - 1)
    return math.sqrt(float((sums_G**2).sum()) * correction) / len(value_N)


def auc(score_N: Numbers, right_N: NDArray[np.bool_]) -> float:
    """Area under the ROC curve; ties count half, NaN if only one class occurs."""
    positives = int(right_N.sum())
    negatives = len(right_N) - positives
    if not positives or not negatives:
        return math.nan
    _, inverse_N, counts = np.unique(score_N, return_inverse=True, return_counts=True)
    rank_N = (counts.cumsum() - (counts - 1) / 2)[inverse_N]
    above = rank_N[right_N].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def error_over_deviation(error_ND: Numbers, deviation_ND: Numbers) -> float:
    """Root mean square error ÷ stated deviation, of the dimension farthest from 1."""
    ratio_D = np.sqrt((error_ND**2).mean(0) / (deviation_ND**2).mean(0))
    return float(ratio_D[np.abs(np.log(np.maximum(ratio_D, 1e-12))).argmax()])


def coverage(error_ND: Numbers, half_width_ND: Numbers) -> float:
    """Share of the errors inside the interval."""
    return float((np.abs(error_ND) <= half_width_ND).mean())


def scaled_error(error_ND: Numbers, scale_D: Numbers) -> float:
    """Root mean square of the errors ÷ *scale_D*, over rows and the dimensions that vary."""
    varies_D = scale_D > 0
    return float(np.sqrt(((error_ND[:, varies_D] / scale_D[varies_D]) ** 2).mean()))
