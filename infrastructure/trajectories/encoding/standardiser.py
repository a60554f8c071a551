"""Standardises recorded numbers per dimension, and converts moments back.

Shapes: N rows, C declared dimensions, K kept (varying) dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infrastructure.trajectories.schema import MAX_MAGNITUDE

CLIP = 10.0
HEAVY_TAIL_KURTOSIS = 12.0

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)  # without slots: arrays are cached
class Standardiser:
    """Statistics of each dimension.

    Attributes:
        mean, scale: Mean and standard deviation, after ``symlog`` where that is set.
        kept: Whether the dimension varies; constant ones carry no information and are dropped.
        symlog: Whether the dimension has heavy tails; its values are first compressed by
            ``sign(x) * log(1 + |x|)``.
        low, high: Range of the training data, in the units of *mean*. Infinite for models saved
            by a version that did not record it.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    kept: tuple[bool, ...]
    symlog: tuple[bool, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def fit(cls, values_NC: Numbers, *, squeeze: bool) -> Standardiser:
        """Compute statistics of *values_NC*, ignoring missing numbers (see `schema.is_usable`).

        Args:
            values_NC: Recorded numbers, float64.
            squeeze: Whether heavy-tailed dimensions get ``symlog``. False for targets: the mean
                in symlog space differs from the mean in recorded units.
        """
        columns = [_fit_column(column_N, squeeze=squeeze) for column_N in values_NC.T]
        means, scales, kept, symlog, low, high = zip(*columns, strict=True)
        return cls(mean=means, scale=scales, kept=kept, symlog=symlog, low=low, high=high)

    @property
    def width(self) -> int:
        """Number of kept dimensions."""
        return sum(self.kept)

    def apply(self, values_NC: Numbers) -> Tensor:
        """Standardise the kept dimensions: ``[N, K]`` float32 in [-10, 10]; missing becomes 0."""
        standard_NC = (self._squeezed(values_NC) - self._arrays.mean) / self._arrays.scale
        standard_NC = np.minimum(np.maximum(standard_NC, -CLIP), CLIP)
        standard_NC[np.isnan(standard_NC)] = 0.0
        return torch.from_numpy(standard_NC[:, self._arrays.kept].astype(np.float32))

    @staticmethod
    def unusable(values_NC: Numbers) -> NDArray[np.bool_]:
        """Whether each number is missing, infinite, or too large; see `schema.is_usable`."""
        return ~_is_usable(values_NC)

    def is_out_of_range(self, values_NC: Numbers) -> NDArray[np.bool_]:
        """Return ``[N]`` bool: whether a kept dimension is far outside the range.

        Far means that the distance from the range exceeds its width. Numbers that are too large to
        be used are far, missing ones are not.
        """
        squeezed_NC = self._squeezed(values_NC)
        low, high = self._arrays.low, self._arrays.high
        distance_NC = np.maximum(low - squeezed_NC, squeezed_NC - high)
        near_NC = (distance_NC <= high - low) | np.isnan(values_NC)  # NaN compares false
        return np.asarray((~near_NC & self._arrays.kept).any(axis=1))

    def invert(self, mean_NK: Tensor, variance_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Convert standardised moments to recorded units, ``[N, K]`` float64."""
        arrays = self._arrays
        mean_K, scale_K = torch.from_numpy(arrays.kept_mean), torch.from_numpy(arrays.kept_scale)
        return mean_NK.double() * scale_K + mean_K, variance_NK.double() * scale_K.square()

    def select_kept(self, values_NC: Tensor) -> Tensor:
        """Select the kept dimensions, ``[N, K]``; *values_NC* itself where all are kept."""
        return values_NC if all(self.kept) else values_NC[:, torch.tensor(self.kept)]

    def to_json(self) -> dict[str, object]:
        """Return the statistics as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[float]]) -> Standardiser:
        """Rebuild the statistics that `to_json` wrote.

        Raises:
            KeyError, TypeError: *value* does not describe a standardiser.
        """
        return cls(
            mean=tuple(value["mean"]),
            scale=tuple(value["scale"]),
            kept=tuple(map(bool, value["kept"])),
            symlog=tuple(map(bool, value["symlog"])),
            low=tuple(value.get("low", [-np.inf] * len(value["mean"]))),
            high=tuple(value.get("high", [np.inf] * len(value["mean"]))),
        )

    def _squeezed(self, values_NC: Numbers) -> Numbers:
        """Apply ``symlog`` where it is set; missing numbers become NaN."""
        values_NC = np.where(_is_usable(values_NC), values_NC, np.nan)
        if not any(self.symlog):
            return values_NC
        return np.where(self._arrays.symlog, _symlog(values_NC), values_NC)

    @cached_property
    def _arrays(self) -> _Arrays:
        mean, scale, kept = np.array(self.mean), np.array(self.scale), np.array(self.kept, bool)
        return _Arrays(
            mean=mean,
            scale=scale,
            kept=kept,
            symlog=np.array(self.symlog, bool),
            low=np.array(self.low),
            high=np.array(self.high),
            kept_mean=mean[kept],
            kept_scale=scale[kept],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Arrays:
    """The statistics as arrays; the last two of the kept dimensions alone."""

    mean: Numbers
    scale: Numbers
    kept: NDArray[np.bool_]
    symlog: NDArray[np.bool_]
    low: Numbers
    high: Numbers
    kept_mean: Numbers
    kept_scale: Numbers


def _is_usable(values: Numbers) -> NDArray[np.bool_]:
    return np.asarray(np.abs(values) <= MAX_MAGNITUDE)  # NaN compares false


def _symlog(values: Numbers) -> Numbers:
    return np.sign(values) * np.log1p(np.abs(values))


def _fit_column(
    column_N: Numbers, *, squeeze: bool
) -> tuple[float, float, bool, bool, float, float]:
    column_M = column_N[_is_usable(column_N)]
    if column_M.size == 0:
        return 0.0, 1.0, False, False, 0.0, 0.0
    mean, deviation = float(column_M.mean()), float(column_M.std())
    low, high = float(column_M.min()), float(column_M.max())
    if deviation <= 1e-12 * float(np.abs(column_M).max()):
        return mean, 1.0, False, False, low, high
    kurtosis = float((((column_M - mean) / deviation) ** 4).mean())
    if squeeze and kurtosis > HEAVY_TAIL_KURTOSIS:
        column_M = _symlog(column_M)
        low, high = float(column_M.min()), float(column_M.max())
        return float(column_M.mean()), float(column_M.std()), True, True, low, high
    return mean, deviation, True, False, low, high
