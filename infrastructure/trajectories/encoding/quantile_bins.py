"""Splits a number into quantile bins, so that a smooth network can follow steps of a target.

The piecewise linear encoding of arXiv:2203.05556: a bin's feature is 0 below the bin, 1 above, and
grows linearly inside. It also grows below the first bin and above the last: slightly outside of the
training data, what was learned goes on.

Shapes: N rows, B bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
from torch import Tensor

from infrastructure.trajectories.encoding.standardiser import Numbers, Standardiser

MOST_BINS = 16
ROWS_PER_BIN = 256
"""Training rows for each bin; fewer would be learned by heart."""

_FEWEST_BINS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantileBins:
    """Bins of one standardised number.

    Attributes:
        edges: Quantiles of the training data, ascending: one more than bins.
        standardiser: Statistics of the bins' features.

    Raises:
        ValueError: The edges are not finite and ascending, or of another number than the
            statistics.
    """

    edges: tuple[float, ...]
    standardiser: Standardiser

    def __post_init__(self) -> None:
        ascending = all(low < high for low, high in pairwise(self.edges))
        if not (np.isfinite(self.edges).all() and ascending):
            raise ValueError(f"edges of bins must be finite and ascend, got {self.edges}")
        if len(self.edges) != len(self.standardiser.mean) + 1:
            raise ValueError(
                f"{len(self.edges)} edges of bins do not fit {len(self.standardiser.mean)} bins"
            )

    @classmethod
    def fit(cls, numbers_N1: Numbers) -> QuantileBins | None:
        """Choose bins; None if there are too few rows or distinct numbers for three.

        Args:
            numbers_N1: Standardised numbers of the training groups, none missing, ``[N, 1]``.
        """
        bins = min(MOST_BINS, len(numbers_N1) // ROWS_PER_BIN)
        if bins < _FEWEST_BINS:
            return None
        edges = np.unique(np.quantile(numbers_N1, np.linspace(0.0, 1.0, bins + 1)))
        if len(edges) <= _FEWEST_BINS:
            return None
        standardiser = Standardiser.fit(_features(numbers_N1, edges), squeeze=False)
        return cls(edges=tuple(edges.tolist()), standardiser=standardiser)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.standardiser.width

    def apply(self, numbers_N1: Numbers) -> Tensor:
        """Features of standardised numbers, standardised themselves: ``[N, B]`` float32."""
        return self.standardiser.apply(_features(numbers_N1, np.array(self.edges)))

    def apply_to(self, numbers: Tensor) -> Tensor:
        """`apply` for a tensor on the CPU with any leading sizes, ``[..., 1]`` -> ``[..., B]``."""
        features_NB = self.apply(numbers.reshape(-1, 1).double().numpy())
        return features_NB.reshape(*numbers.shape[:-1], -1)

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` needs."""
        return {"edges": list(self.edges), "standardiser": self.standardiser.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> QuantileBins:
        """Rebuild the bins that `to_json` described.

        Raises:
            KeyError, TypeError, ValueError: *value* does not describe bins.
        """
        statistics = cast(Mapping[str, Sequence[float]], value["standardiser"])
        return cls(
            edges=tuple(map(float, cast(Sequence[float], value["edges"]))),
            standardiser=Standardiser.from_json(statistics),
        )


def _features(numbers_N1: Numbers, edges: Numbers) -> Numbers:
    shares_NB = (numbers_N1 - edges[:-1]) / np.diff(edges)
    low_B, high_B = np.zeros(len(edges) - 1), np.ones(len(edges) - 1)
    low_B[0], high_B[-1] = -np.inf, np.inf
    return np.asarray(np.clip(shares_NB, low_B, high_B))
