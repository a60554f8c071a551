"""Calibration of a `Box` target: the standard deviation, the tails and the 90 % interval.

Shapes: N rows, C dimensions, T tails, V variants: no correction, then the four of `fit`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infrastructure.world_model.distributions.cross_validation import fold_numbers, helps
from infrastructure.world_model.distributions.metrics import Z_90, student_nll
from infrastructure.world_model.distributions.predictive import BoxDistribution

MIN_ROWS = 20
"""With fewer rows, standard deviations and intervals stay as they are."""

COVERAGE = 0.9
"""Share of values inside the interval."""

_TAILS = torch.tensor(
    [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.475, 0.49], dtype=torch.float64
)
_MOST_ROWS = 10_000  # of a fit: more give no better scale, and cost time
_POWER_FREEDOM = 4.0  # of the t by whose likelihood the power is fitted: outliers weigh little
_POWER_PRIOR_ROWS = 10.0
_POWER_BOUNDS = (0.2, 3.0)
_POWERED = slice(3, 5)  # the variants with a power
_DISHONESTY = math.log(1.25)
_NEWTON_STEPS = 12
_EDGE = 0.95  # quantile of the deviations up to which a power is fitted
_SMALLEST_SCALE = 1e-6  # even where all errors are 0


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxCalibration:
    """Correction of each dimension of a `Box` target.

    Attributes:
        scale, power, center, edge: The standard deviation becomes
            ``scale * deviation * (min(deviation, edge) / center) ** (power - 1)``. The power
            spreads deviations that are too alike, as those of a network at its smallest variance;
            *center* is their geometric mean. Beyond *edge* there are too few errors to know it: a
            power of rare large deviations would state many times the error.
        tail: One over the degrees of freedom of Student's t; 0 for a Gaussian.
        interval: Half the width of the 90 % interval in calibrated standard deviations: a
            quantile of the errors.
    """

    scale: tuple[float, ...]
    power: tuple[float, ...]
    center: tuple[float, ...]
    edge: tuple[float, ...]
    tail: tuple[float, ...]
    interval: tuple[float, ...]

    @classmethod
    def identity(cls, dimensions: int) -> BoxCalibration:
        """Return the calibration that changes nothing."""
        ones, zeros = (1.0,) * dimensions, (0.0,) * dimensions
        return cls(
            scale=ones,
            power=ones,
            center=ones,
            edge=(math.inf,) * dimensions,
            tail=zeros,
            interval=(Z_90,) * dimensions,
        )

    @classmethod
    def fit(
        cls,
        predicted: BoxDistribution,
        value_NC: Tensor,
        kept_C: Tensor,
        groups: Sequence[str] | None = None,
    ) -> BoxCalibration:
        """Fit the corrections, and choose among them by the likelihood of other groups.

        There are four: a scale alone or with a power, for a Gaussian or for a Student's t. A power
        must state the errors of other groups, too: the root mean squares of deviations and errors
        may differ by a quarter, or by less than without it. A dimension keeps the best one if it
        beats no correction by half a standard error.

        Args:
            kept_C: Whether the dimension varied; others stay as they are.
            groups: Group of each row; None if rows are independent.
        """
        step = max(1, -(-len(value_NC) // _MOST_ROWS))
        error_NC = (value_NC - predicted.mean)[::step]
        deviation_NC = predicted.variance[::step].sqrt()
        rows, dimensions = error_NC.shape
        if rows < MIN_ROWS:
            return cls.identity(dimensions)
        groups = None if groups is None else groups[::step]
        unchanged = _Correction.identity(dimensions)
        variants = [unchanged, *_fit_variants(error_NC, deviation_NC)]
        nll_VNC = unchanged.nll(error_NC, deviation_NC).repeat(len(variants), 1, 1)
        ratio_VNC = (error_NC / deviation_NC).abs().repeat(len(variants), 1, 1)
        variance_VNC = deviation_NC.square().repeat(len(variants), 1, 1)
        fold_N, folds = fold_numbers(groups, rows)
        for number in range(folds):
            held_out_N = fold_N == number
            error, deviation = error_NC[held_out_N], deviation_NC[held_out_N]
            fitted = _fit_variants(error_NC[~held_out_N], deviation_NC[~held_out_N])
            for variant, correction in enumerate(fitted, start=1):
                nll_VNC[variant, held_out_N] = correction.nll(error, deviation)
                stated = correction.deviations(deviation)
                ratio_VNC[variant, held_out_N] = (error / stated).abs()
                variance_VNC[variant, held_out_N] = stated.square()
        dishonesty_VC = (error_NC.square().mean(0) / variance_VNC.mean(1)).log().abs() / 2
        bound_C = dishonesty_VC[1].clamp(min=_DISHONESTY)
        allowed_VC = torch.ones_like(dishonesty_VC, dtype=torch.bool)
        allowed_VC[_POWERED] = dishonesty_VC[_POWERED] <= bound_C
        best_C = nll_VNC.mean(1).where(allowed_VC, torch.inf).argmin(0)
        for dimension, best in enumerate(best_C.tolist()):
            gain_N = nll_VNC[0, :, dimension] - nll_VNC[best, :, dimension]
            if not (kept_C[dimension] and helps(gain_N, groups)):
                best_C[dimension] = 0
        chosen = best_C.tolist()
        final = [variants[variant] for variant in chosen]
        level = min(1.0, COVERAGE * (1.0 + 1.0 / rows))
        ratio_NC = torch.stack([ratio_VNC[v, :, c] for c, v in enumerate(chosen)], dim=1)
        interval_C = ratio_NC.quantile(level, dim=0)
        return cls(
            scale=tuple(float(each.scale[c]) for c, each in enumerate(final)),
            power=tuple(float(each.power[c]) for c, each in enumerate(final)),
            center=tuple(float(each.center[c]) for c, each in enumerate(final)),
            edge=tuple(float(each.edge[c]) for c, each in enumerate(final)),
            tail=tuple(float(each.tail[c]) for c, each in enumerate(final)),
            interval=tuple(interval_C.where(kept_C, Z_90).clamp(min=_SMALLEST_SCALE).tolist()),
        )

    def apply(self, predicted: BoxDistribution) -> BoxDistribution:
        """Return *predicted* with corrected variance, tail and interval."""
        rows = (self.scale, self.power, self.center, self.edge, self.tail, self.interval)
        scale_C, power_C, center_C, edge_C, tail_C, interval_C = torch.tensor(
            rows, dtype=torch.float64
        ).unbind()
        correction = _Correction(
            scale=scale_C, power=power_C, center=center_C, edge=edge_C, tail=tail_C
        )
        deviation_NC = correction.deviations(predicted.variance.sqrt())
        return replace(
            predicted,
            variance=deviation_NC.square(),
            tail=correction.tail,
            half_width=deviation_NC * interval_C,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Correction:
    """Parameters of each dimension, ``[C]`` each; see `BoxCalibration`."""

    scale: Tensor
    power: Tensor
    center: Tensor
    edge: Tensor
    tail: Tensor

    @classmethod
    def identity(cls, dimensions: int) -> _Correction:
        ones_C = torch.ones(dimensions, dtype=torch.float64)
        return cls(
            scale=ones_C,
            power=ones_C,
            center=ones_C,
            edge=torch.full_like(ones_C, math.inf),
            tail=torch.zeros_like(ones_C),
        )

    def deviations(self, deviation_NC: Tensor) -> Tensor:
        share_NC = deviation_NC.minimum(self.edge) / self.center
        return self.scale * deviation_NC * share_NC ** (self.power - 1.0)

    def nll(self, error_NC: Tensor, deviation_NC: Tensor) -> Tensor:
        variance_NC = self.deviations(deviation_NC).square()
        return student_nll(torch.zeros_like(error_NC), variance_NC, self.tail, error_NC)


def _fit_variants(error_NC: Tensor, deviation_NC: Tensor) -> list[_Correction]:
    """Fit a scale for a Gaussian and for a t, then both with a power."""
    power_C = _fit_power(error_NC, deviation_NC)
    alone = _fit_scale(error_NC, deviation_NC, torch.ones_like(power_C))
    powered = _fit_scale(error_NC, deviation_NC, power_C)
    return [
        variant
        for gaussian in (alone, powered)
        for variant in (gaussian, _with_tail(gaussian, error_NC, deviation_NC))
    ]


def _fit_scale(error_NC: Tensor, deviation_NC: Tensor, power_C: Tensor) -> _Correction:
    """Fit the scale of a Gaussian: its standard deviation is the root mean square error."""
    ones_C, center_C = torch.ones_like(power_C), deviation_NC.log().mean(0).exp()
    edge_C = deviation_NC.quantile(_EDGE, dim=0).where(power_C != 1.0, torch.inf)
    unscaled = _Correction(
        scale=ones_C, power=power_C, center=center_C, edge=edge_C, tail=torch.zeros_like(power_C)
    )
    squared_NC = (error_NC / unscaled.deviations(deviation_NC)).square()
    return replace(unscaled, scale=squared_NC.mean(0).clamp(min=_SMALLEST_SCALE**2).sqrt())


def _with_tail(gaussian: _Correction, error_NC: Tensor, deviation_NC: Tensor) -> _Correction:
    """Return the likeliest t whose variance is that of *gaussian*."""
    variance_NC = gaussian.deviations(deviation_NC).square()
    nll_TNC = student_nll(torch.zeros(()), variance_NC, _TAILS[:, None, None], error_NC)
    return replace(gaussian, tail=_TAILS[nll_TNC.sum(1).argmin(0)])


def fit_scale_and_tail(predicted: BoxDistribution, value_NC: Tensor) -> Tensor:
    """Return the negative log-likelihood of *value_NC*, ``[N, C]``, with scale and tail fitted.

    Of many rows, evenly spaced ones are taken.
    """
    step = max(1, -(-len(value_NC) // _MOST_ROWS))
    error_NC = (value_NC - predicted.mean)[::step]
    deviation_NC = predicted.variance[::step].sqrt()
    gaussian = _fit_scale(error_NC, deviation_NC, torch.ones_like(error_NC[0]))
    return _with_tail(gaussian, error_NC, deviation_NC).nll(error_NC, deviation_NC)


def _fit_power(error_NC: Tensor, deviation_NC: Tensor) -> Tensor:
    """Fit the power of the deviations by the likelihood of a t, ``[C]``; by Newton's method.

    The likelihood is convex in power and log-scale. A prior favours 1.
    """
    centered_NC = 2.0 * deviation_NC.log()
    centered_NC = centered_NC - centered_NC.mean(0)
    log_error_NC = error_NC.square().clamp(min=1e-300).log()
    offset_C = log_error_NC.median(0).values
    power_C = torch.ones_like(offset_C)
    freedom = _POWER_FREEDOM
    for _ in range(_NEWTON_STEPS):
        log_variance_NC = offset_C + power_C * centered_NC
        share_NC = (log_error_NC - log_variance_NC - torch.tensor(freedom).log()).sigmoid()
        slope_NC = 0.5 - (freedom + 1) / 2 * share_NC
        bend_NC = (freedom + 1) / 2 * share_NC * (1 - share_NC)
        gradient = slope_NC.sum(0), (slope_NC * centered_NC).sum(0)
        gradient = gradient[0], gradient[1] + _POWER_PRIOR_ROWS * (power_C - 1.0)
        h11, h12 = bend_NC.sum(0) + 1e-6, (bend_NC * centered_NC).sum(0)
        h22 = (bend_NC * centered_NC.square()).sum(0) + _POWER_PRIOR_ROWS
        determinant = (h11 * h22 - h12.square()).clamp(min=1e-12)
        offset_step = (h22 * gradient[0] - h12 * gradient[1]) / determinant
        power_step = (h11 * gradient[1] - h12 * gradient[0]) / determinant
        offset_C = offset_C - offset_step.clamp(-2.0, 2.0)
        power_C = (power_C - power_step.clamp(-0.5, 0.5)).clamp(*_POWER_BOUNDS)
    return power_C
