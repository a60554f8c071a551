"""Intervals that resample prompts, because completions of one prompt are related."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.measuring.spread import Interval

Numbers = NDArray[np.float64]


class PromptBootstrap:
    """Resamples prompts; every figure uses the same resamples, so that ratios are paired.

    Args:
        prompts: Number of prompts.
        group: Rows of each prompt, one after the other.
        resamples: Number of resamples.
        seed: Seed of the draws.
    """

    def __init__(self, *, prompts: int, group: int, resamples: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        drawn = generator.integers(prompts, size=(resamples, prompts))
        self._rows = (drawn[:, :, None] * group + np.arange(group)).reshape(resamples, -1)
        self._all = np.arange(prompts * group)

    def rows(self) -> Iterator[Tensor]:
        """Row numbers of each resample."""
        yield from map(torch.from_numpy, self._rows)

    def interval(self, figure: Callable[[Tensor], float]) -> Interval:
        """The figure of all rows, with quantiles of the same figure of the resamples."""
        values = [figure(rows) for rows in self.rows()]
        return interval(figure(torch.from_numpy(self._all)), np.array(values))


def interval(figure: float, resampled: Numbers) -> Interval:
    """*figure* with the 2.5 % and 97.5 % quantiles of its resamples."""
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Interval(figure=figure, low=float(low), high=float(high))
