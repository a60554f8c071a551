"""Bootstrap intervals that resample whole modules, because functions of a module are related."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring.spread import Interval

Numbers = NDArray[np.float64]


class ModuleBootstrap:
    """Resamples modules; all comparisons use the same resamples, so they are paired.

    Args:
        modules: Module of each bug.
        resamples: Number of resamples.
        seed: Seed of the draws.
    """

    def __init__(self, modules: Sequence[str], resamples: int, seed: int) -> None:
        names = sorted(set(modules))
        position = {name: index for index, name in enumerate(names)}
        self._cluster = np.array([position[name] for name in modules])
        rng = np.random.default_rng(seed)
        drawn = rng.integers(len(names), size=(resamples, len(names)))
        self._weights = np.stack([np.bincount(row, minlength=len(names)) for row in drawn])
        self._counts = np.bincount(self._cluster, minlength=len(names)).astype(float)

    def mean(self, values: Sequence[float]) -> Interval:
        """Return the mean over bugs."""
        sums = self._sums(values)
        means = (self._weights @ sums) / (self._weights @ self._counts)
        return _interval(float(np.mean(values)), means)

    def difference(self, first: Sequence[float], second: Sequence[float]) -> Interval:
        """Return the mean of *first* minus *second*, bug by bug."""
        return self.mean([one - other for one, other in zip(first, second, strict=True)])

    def ratio(self, above: Sequence[float], below: Sequence[float]) -> Interval:
        """Return the mean of *above* divided by the mean of *below*."""
        ratios = (self._weights @ self._sums(above)) / (self._weights @ self._sums(below))
        return _interval(float(np.mean(above) / np.mean(below)), ratios)

    def _sums(self, values: Sequence[float]) -> Numbers:
        sums: Numbers = np.bincount(self._cluster, values, len(self._counts)).astype(np.float64)
        return sums


def _interval(figure: float, resampled: Numbers) -> Interval:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Interval(figure=figure, low=float(low), high=float(high))


def upper_bound_of_mean(values: Sequence[float]) -> Interval:
    """Return the mean of paired differences; ``high`` is Student's one-sided 95 % bound."""
    array = np.asarray(values, dtype=float)
    mean = float(array.mean())
    error = float(array.std(ddof=1) / len(array) ** 0.5)
    quantile = _T_95[len(array) - 1]
    return Interval(figure=mean, low=mean - quantile * error, high=mean + quantile * error)


_T_95 = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833}
"""One-sided 95 % quantiles of Student's t by degrees of freedom."""
