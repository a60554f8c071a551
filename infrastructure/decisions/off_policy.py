"""What another policy's choices would have been worth, from decisions with propensities.

Self-normalised importance sampling (Swaminathan and Joachims 2015, "The Self-Normalized Estimator
for Counterfactual Learning") and the doubly robust estimator (Dudik, Langford and Li 2011,
arXiv:1103.4601). N decisions, G groups; float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Positions: TypeAlias = Sequence[int] | NDArray[np.int64]

ENOUGH = 100.0
"""Effective sample size below which an interval is not to be trusted."""
MAX_WEIGHT = 1000.0
REPLICATIONS = 1000
_LEVEL = 0.95
_NORMAL_KURTOSIS = 3.0
_CHUNK = 1 << 22  # random numbers at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRewards:
    """What was logged.

    Attributes:
        reward_N: Reward of the chosen action.
        propensity_N: Probability with which it was chosen, in (0, 1].
        predicted_N: Prediction of its reward by a model that was not fitted on these decisions.
        groups: Group of each decision; decisions of one group depend on one another.
    """

    reward_N: Floats
    propensity_N: Floats
    predicted_N: Floats
    groups: Sequence[str]

    def __post_init__(self) -> None:
        count = len(self.groups)
        for name in ("reward_N", "propensity_N", "predicted_N"):
            values = getattr(self, name)
            if values.shape != (count,) or not np.isfinite(values).all():
                raise ValueError(f"{name} must be {count} finite numbers, one for each decision")
        if not ((self.propensity_N > 0) & (self.propensity_N <= 1)).all():
            raise ValueError("propensities must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetPolicy:
    """The policy to be estimated.

    Attributes:
        probability_N: Probability with which it takes the action that was chosen.
        predicted_N: Mean predicted reward of the actions that it takes.
    """

    probability_N: Floats
    predicted_N: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate and its central 95 % interval by the bootstrap over groups."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Mean reward of a policy, or the difference of two.

    Attributes:
        snips: Self-normalised importance sampling: ``sum(w r) / sum(w)``, where ``w`` is the
            policy's probability over the propensity.
        doubly_robust: ``mean(q(x, policy) + w (r - q(x, a)))`` with the predicted reward ``q``.
        effective_sample_size: The least of ``sum(w)**2 / sum(w**2)`` over decisions, with the
            difference of the weights for two policies; the same over the groups' sums; and how many
            normal terms would have the kurtosis of the groups' influence on either estimate, so
            that a few rare choices with large weights do not pass for many.
        clipped_share: Share of the decisions whose weight was clipped.
        clipping_bias: What clipping has changed in the doubly robust value.
    """

    snips: Interval
    doubly_robust: Interval
    effective_sample_size: float
    clipped_share: float = 0.0
    clipping_bias: float = 0.0

    @property
    def is_enough(self) -> bool:
        """Whether the sample suffices for the intervals to be trusted."""
        ends = (self.snips.low, self.snips.high, self.doubly_robust.low, self.doubly_robust.high)
        return self.effective_sample_size >= ENOUGH and all(map(math.isfinite, ends))


class OffPolicyEstimator:
    """Estimates policies on one log; the same resamples of groups serve all of them.

    Args:
        logged: What was logged; at least one decision.
        max_weight: Larger weights are clipped, which trades variance for a bias that is told.
        replications: Number of bootstrap resamples.
        seed: Seed of the resamples.

    Raises:
        ValueError: *logged* is empty.
    """

    def __init__(
        self,
        logged: LoggedRewards,
        *,
        max_weight: float = MAX_WEIGHT,
        replications: int = REPLICATIONS,
        seed: int = 0,
    ) -> None:
        if not logged.groups:
            raise ValueError("there is no decision to estimate from")
        self._logged, self._max_weight, self._seed = logged, max_weight, seed
        _, self._group_N = np.unique(np.asarray(logged.groups), return_inverse=True)
        self._groups = int(self._group_N.max()) + 1
        self._replications = replications

    def value(self, policy: TargetPolicy) -> Estimate:
        """Mean reward of *policy*."""
        return self._estimate([self._terms(policy)])

    def difference(self, policy: TargetPolicy, other: TargetPolicy) -> Estimate:
        """Mean reward of *policy* minus that of *other*, paired by decision."""
        return self._estimate([self._terms(policy), self._terms(other)])

    def _terms(self, policy: TargetPolicy) -> _Terms:
        logged = self._logged
        unclipped_N = policy.probability_N / logged.propensity_N
        weight_N = np.minimum(unclipped_N, self._max_weight)
        residual_N = logged.reward_N - logged.predicted_N
        robust_N = policy.predicted_N + weight_N * residual_N
        ones_N = np.ones_like(weight_N)
        sums_G4 = np.zeros((self._groups, 4))
        rows_N4 = np.stack([weight_N * logged.reward_N, weight_N, robust_N, ones_N], axis=1)
        np.add.at(sums_G4, self._group_N, rows_N4)
        return _Terms(
            weight_N=weight_N,
            sums_G4=sums_G4,
            clipped=float((unclipped_N > weight_N).mean()),
            bias=float(((weight_N - unclipped_N) * residual_N).mean()),
        )

    def _estimate(self, policies: list[_Terms]) -> Estimate:
        sums_GK = np.concatenate([terms.sums_G4 for terms in policies], axis=1)
        value, gradient_1K2 = _values(sums_GK.sum(axis=0, keepdims=True))
        with np.errstate(invalid="ignore"):
            influence_G2 = sums_GK @ gradient_1K2[0]  # NaN if no weight is above 0
        error = np.sqrt(np.square(influence_G2).sum(axis=0))
        values, errors = self._resampled(sums_GK)
        first, other = policies[0], policies[1] if len(policies) > 1 else None
        weight_N = first.weight_N if other is None else np.abs(first.weight_N - other.weight_N)
        weight_G: Floats = np.bincount(self._group_N, weight_N).astype(np.float64)
        snips, robust = (
            _studentised(value[0, k], error[k], values[:, k], errors[:, k]) for k in (0, 1)
        )
        return Estimate(
            snips=snips,
            doubly_robust=robust,
            effective_sample_size=min(
                _kish(weight_N),
                _kish(weight_G),
                *(_NORMAL_KURTOSIS * _kish(squares_G) for squares_G in np.square(influence_G2).T),
            ),
            clipped_share=max(terms.clipped for terms in policies),
            clipping_bias=first.bias - (other.bias if other is not None else 0.0),
        )

    def _resampled(self, sums_GK: Floats) -> tuple[Floats, Floats]:
        """Values of each resample of the groups, and their standard errors, ``[B, 2]``."""
        generator = np.random.default_rng(self._seed)
        chunk = max(1, _CHUNK // self._groups)
        wide = sums_GK.shape[1]
        products = (sums_GK[:, :, None] * sums_GK[:, None, :]).reshape(self._groups, wide * wide)
        parts, left = [], self._replications
        while left > 0:
            count = min(chunk, left)
            drawn = generator.integers(0, self._groups, (count, self._groups))
            offsets = np.arange(count)[:, None] * self._groups
            times = np.bincount((drawn + offsets).ravel(), minlength=count * self._groups)
            times_BG = times.reshape(count, self._groups).astype(np.float64)
            values_B2, gradient_BK2 = _values(times_BG @ sums_GK)
            products_BKK = (times_BG @ products).reshape(-1, wide, wide)
            variance_B2 = np.einsum("bik,bij,bjk->bk", gradient_BK2, products_BKK, gradient_BK2)
            parts.append((values_B2, np.sqrt(np.maximum(variance_B2, 0.0))))
            left -= count
        values, errors = zip(*parts, strict=True)
        return np.concatenate(values), np.concatenate(errors)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Terms:
    """Clipped weights ``w``; sums by group of ``w r``, ``w``, doubly robust terms and decisions."""

    weight_N: Floats
    sums_G4: Floats
    clipped: float
    bias: float


def _values(sums_BK: Floats) -> tuple[Floats, Floats]:
    """Both estimates of each row, of two policies their differences, ``[B, 2]``; and gradients."""
    values_B2 = np.zeros((len(sums_BK), 2))
    gradient_BK2 = np.zeros((*sums_BK.shape, 2))
    for first in range(0, sums_BK.shape[1], 4):
        sign = 1.0 if first == 0 else -1.0
        for k in (0, 1):
            over, under = first + 2 * k, first + 2 * k + 1
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio_B = sums_BK[:, over] / sums_BK[:, under]
                gradient_BK2[:, over, k] = sign / sums_BK[:, under]
                gradient_BK2[:, under, k] = -sign * ratio_B / sums_BK[:, under]
            values_B2[:, k] += sign * ratio_B
    return values_B2, gradient_BK2


def _studentised(value: float, error: float, values: Floats, errors: Floats) -> Interval:
    """The bootstrap-t interval (Efron and Tibshirani 1993, section 12.5), which allows for skew."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (values - value) / errors
    ratios = np.where(np.isnan(ratios), 0.0, ratios)
    tail = (1.0 - _LEVEL) / 2
    low, high = np.quantile(ratios, [tail, 1.0 - tail], method="higher")
    return Interval(
        value=float(value), low=float(value - high * error), high=float(value - low * error)
    )


def _kish(weights: Floats) -> float:
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0.0 else 0.0


def greedy(best_N: Positions, chosen_N: Positions) -> Floats:
    """Probability with which a policy that takes *best_N* takes the chosen actions: 0 or 1."""
    agrees_N: Floats = (np.asarray(best_N) == np.asarray(chosen_N)).astype(np.float64)
    return agrees_N


def cross_fitted(
    features_NF: Floats, rewards_N: Floats, groups: Sequence[str], asked: Sequence[Floats]
) -> list[Floats]:
    """Predict rewards linearly; each group by a fit on the other half of the groups.

    Args:
        features_NF: Features of the chosen actions.
        rewards_N: Their rewards.
        groups: Group of each decision.
        asked: Features of the same decisions' other actions, each ``[N, F]``.

    Returns:
        Predictions for the chosen actions, and for each of *asked*.
    """
    names, group_N = np.unique(np.asarray(groups), return_inverse=True)
    half_N = np.random.default_rng(0).permutation(len(names))[group_N] % 2
    inputs = [features_NF, *asked]
    predicted = [np.zeros(len(rewards_N)) for _ in inputs]
    for half in (0, 1):
        fitted_on = half_N != half
        design = _with_ones(features_NF[fitted_on])
        fit, *_ = np.linalg.lstsq(design, rewards_N[fitted_on], rcond=None)
        for prediction, features in zip(predicted, inputs, strict=True):
            prediction[half_N == half] = _with_ones(features[half_N == half]) @ fit
    return predicted


def _with_ones(features: Floats) -> Floats:
    design: Floats = np.concatenate([np.ones((len(features), 1)), features], axis=1)
    return design


def shown(estimate: Estimate) -> str:
    """The doubly robust value with its interval, or what is missing for one."""
    if not estimate.is_enough:
        return (
            f"not enough: effective sample size {math.floor(estimate.effective_sample_size)} of "
            f"{ENOUGH:g}"
        )
    value = estimate.doubly_robust
    return f"{value.value:+.4g} (95 % interval {value.low:+.4g} to {value.high:+.4g})"
