"""Whether a policy is better than the one in use, by a paired bootstrap.

Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 12.5 (percentile interval).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

RESAMPLES = 4000


class Interval(NamedTuple):
    """A difference with its confidence interval.

    Attributes:
        mean: Mean difference.
        low, high: Bounds of its 95 % interval.
    """

    mean: float
    low: float
    high: float


def paired_difference(new: Sequence[float], old: Sequence[float], *, seed: int = 0) -> Interval:
    """Mean of *new* minus *old*, rewards for the same problems in the same order.

    Problems are drawn with replacement, so that a problem which is hard for both does not widen
    the interval.

    Raises:
        ValueError: The numbers of rewards differ, or there are none.
    """
    if len(new) != len(old) or not new:
        raise ValueError(f"got {len(new)} and {len(old)} rewards: compare them problem by problem")
    difference = torch.tensor(new, dtype=torch.float64) - torch.tensor(old, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(difference), (RESAMPLES, len(difference)), generator=generator)
    low, high = difference[rows].mean(1).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return Interval(difference.mean().item(), low, high)
