"""Median and quartiles of repeated measurements; a figure with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Median and quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of *values*; a single value is its own median and quartiles."""
        if len(values) == 1:
            return cls(low=values[0], median=values[0], high=values[0])
        low, median, high = quantiles(values, n=4, method="inclusive")
        return cls(low=low, median=median, high=high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A figure and its 95 % interval."""

    figure: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.figure:.3g} [{self.low:.3g}, {self.high:.3g}]"
