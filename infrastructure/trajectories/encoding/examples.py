"""Values of the training data in place of one that a row lacks.

Shapes: N rows, M of them with an unknown value, R examples, D dense features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infrastructure.trajectories.encoding.features import Features

BANDWIDTH = 0.6
"""Width of the kernel around a row's known values, in standard deviations of the examples."""

_FEWEST_ROWS = 8  # that correlations are computed from


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """Some training rows, encoded.

    Attributes:
        dense: Their dense features, ``[R, D]`` float32.
        scale: Standard deviation of each feature, ``[D]``; 1 where it does not vary.
        shared: Squared correlation of each two features, ``[D, D]``; 0 where it is not
            distinguishable from none, or a feature does not vary.
    """

    dense: Tensor
    scale: Tensor
    shared: Tensor

    @classmethod
    def of(cls, dense_RD: Tensor) -> Examples:
        """Compute the statistics of *dense_RD*."""
        rows = len(dense_RD)
        spread_D = (dense_RD - dense_RD.mean(0)).square().mean(0).sqrt()
        scale_D = torch.where(spread_D > 0, spread_D, 1.0)
        standard_RD = (dense_RD - dense_RD.mean(0)) / scale_D
        squared_DD = (standard_RD.T @ standard_RD / rows).square()
        squared_DD[squared_DD < 9 / max(rows, _FEWEST_ROWS)] = 0.0  # three standard errors
        return cls(dense=dense_RD, scale=scale_D, shared=squared_DD)

    def first(self, width: int) -> Examples:
        """The same of the first *width* features."""
        return Examples(
            dense=self.dense[:, :width],
            scale=self.scale[:width],
            shared=self.shared[:width, :width],
        )

    def fill(self, features: Features, size: int) -> Iterator[tuple[Tensor, Features]]:
        """Yield the rows that lack a value, *size* at a time, with values of the examples instead.

        The examples are weighted by a Gaussian kernel around the row's known values. Each feature
        counts by its squared correlation with the unknown ones, so that those that tell nothing
        of them do not matter.

        Yields:
            Weights of the examples, ``[M, R]`` with sums of 1, and features of ``M * R`` rows: each
            row with the values of each example where it is `Features.unknown`, and otherwise with
            its own.
        """
        if features.unknown is None:
            return
        count = len(self.dense)
        for rows_M in features.unknown.any(dim=1).nonzero()[:, 0].split(size):
            unknown_MD = features.unknown[rows_M]
            many = replace(features, flags={}).take(rows_M.repeat_interleave(count))
            unknown_RD = unknown_MD.repeat_interleave(count, dim=0)
            dense_RD = torch.where(unknown_RD, self.dense.repeat(len(rows_M), 1), many.dense)
            weights_MR = self.weights(features.dense[rows_M], unknown_MD)
            yield weights_MR, replace(many, dense=dense_RD, unknown=None)

    def weights(self, dense_MD: Tensor, unknown_MD: Tensor) -> Tensor:
        """Weights of the examples for each row, ``[M, R]`` float64 with sums of 1; see `fill`."""
        shared_MD = (unknown_MD.float() @ self.shared).clamp(max=1.0)
        root_MD = shared_MD.masked_fill(unknown_MD, 0.0).sqrt() / self.scale
        # |r x - r e|^2 without [M, R, D]
        squared_MR = (root_MD * dense_MD).square().sum(1, keepdim=True)
        squared_MR = squared_MR - 2 * (root_MD.square() * dense_MD) @ self.dense.T
        squared_MR = squared_MR + root_MD.square() @ self.dense.T.square()
        return (squared_MR / (-2 * BANDWIDTH**2)).double().softmax(dim=1)
