"""Error of a computation in one type against the same computation in a wider one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.precision_lab.metrics.valid import mean_of, quantile_of, valid_values

_TINY = 1e-12  # keeps the relative error of an exact zero finite


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionError:
    """Errors x - y of values x against exact ones y, over N valid entries, float64.

    Absolute: `|x - y|`. Relative: `|x - y| / (|y| + 1e-12)`, so where y is 0, the error in units of
    1e-12. Quantiles are interpolated linearly. A NaN makes the figures NaN, an infinity infinite.

    Attributes:
        abs_err_mean: Mean absolute error.
        abs_err_max: Largest one.
        abs_err_p99: 99 % quantile.
        rel_err_mean: Mean relative error.
        rel_err_max: Largest one.
        rel_err_p99: 99 % quantile.
        zero_rounding_rate: Share of entries with x = 0 and y not.
        sign_flip_rate: Share of entries with x and y of opposite signs, neither 0.
    """

    abs_err_mean: float
    abs_err_max: float
    abs_err_p99: float
    rel_err_mean: float
    rel_err_max: float
    rel_err_p99: float
    zero_rounding_rate: float
    sign_flip_rate: float


def measure_error(values: Tensor, exact: Tensor, mask: Tensor | None = None) -> PrecisionError:
    """Measure the error of *values*; waits for the device.

    Args:
        values: Result of the computation in the narrower type, any shape and float dtype.
        exact: Result in the wider one, in its own dtype.
        mask: Entries that count, bool; None for all.

    Raises:
        MetricError: Shapes differ, or nothing is valid.
    """
    if mask is None:
        mask = torch.ones_like(values, dtype=torch.bool)
    found_N, exact_N = (
        tensor.double() for tensor in valid_values(mask, values=values, exact=exact)
    )
    absolute_N = (found_N - exact_N).abs()
    relative_N = absolute_N / (exact_N.abs() + _TINY)
    return PrecisionError(
        abs_err_mean=mean_of(absolute_N),
        abs_err_max=absolute_N.max().item(),
        abs_err_p99=quantile_of(absolute_N, 0.99),
        rel_err_mean=mean_of(relative_N),
        rel_err_max=relative_N.max().item(),
        rel_err_p99=quantile_of(relative_N, 0.99),
        zero_rounding_rate=mean_of((found_N == 0) & (exact_N != 0)),
        sign_flip_rate=mean_of(found_N.sign() * exact_N.sign() < 0),
    )
