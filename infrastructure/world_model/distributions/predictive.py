"""Predictive distributions of each target, in recorded units.

Shapes: M members, N rows, C declared and K varying dimensions of a `Box`, L labels of a
`Discrete`. All tensors are float64, on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions.metrics import (
    SMALLEST_PROBABILITY,
    SMALLEST_TAIL,
    Z_90,
    student_nll,
)
from infrastructure.world_model.networks.loss import bounded_variance


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxDistribution:
    """A Gaussian or a Student's t per row and dimension.

    Attributes:
        mean, variance: Moments, ``[N, C]``; those of the change for a delta target. The variance
            is the members' mean variance plus their disagreement.
        tail: One over the degrees of freedom of Student's t, ``[C]`` in [0, 1/2); None for a
            Gaussian.
        half_width: Half the width of the 90 % interval, ``[N, C]``; None for a Gaussian's.
    """

    mean: Tensor
    variance: Tensor
    tail: Tensor | None = None
    half_width: Tensor | None = None

    def nll(self, value: Tensor) -> Tensor:
        """Return the negative log-density of *value* in nats, ``[N, C]``."""
        tail_C = self.mean.new_zeros(self.mean.shape[1]) if self.tail is None else self.tail
        return student_nll(self.mean, self.variance, tail_C, value)

    def entropy(self) -> Tensor:
        """Return the differential entropy in nats, ``[N, C]``: the mean of `nll`.

        Student's t has ``(v + 1) / 2 (psi((v + 1) / 2) - psi(v / 2))`` more than the negative
        log-density of its mean, v being the degrees of freedom; a Gaussian, the limit, 1 / 2.
        """
        tail_C = self.mean.new_zeros(self.mean.shape[1]) if self.tail is None else self.tail
        half_C = 0.5 / tail_C.clamp(min=SMALLEST_TAIL)
        more_C = (half_C + 0.5) * (torch.digamma(half_C + 0.5) - torch.digamma(half_C))
        return self.nll(self.mean) + more_C

    def half_width_90(self) -> Tensor:
        """Return half the width of the 90 % interval, ``[N, C]``."""
        return Z_90 * self.variance.sqrt() if self.half_width is None else self.half_width


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteDistribution:
    """A categorical distribution per row.

    Attributes:
        probabilities: ``[N, L]``; each row sums to 1.
    """

    probabilities: Tensor

    def log_odds(self, label: int) -> Tensor:
        """Return the log-odds of *label* against all others, ``[N]``."""
        return _log(self.probabilities[:, label]) - _log(1.0 - self.probabilities[:, label])


TargetDistribution: TypeAlias = BoxDistribution | DiscreteDistribution
TargetDistributions: TypeAlias = Mapping[str, TargetDistribution]
BlendWeights: TypeAlias = Mapping[str, tuple[float, float]]
"""Weights of ensemble and linear model for each target; see `blend`."""

OOD_SHRINKAGE = 0.9
"""Weight of the base rate in predictions for out-of-distribution inputs. Below 1, so that the order
among such inputs is kept."""


def predictive_distributions(
    raw: Mapping[str, Tensor], codec: TargetCodec, rows: int
) -> dict[str, TargetDistribution]:
    """Convert raw head outputs, float32; constant targets get their base rates."""
    heads, predicted = codec.heads, dict[str, TargetDistribution]()
    for name in codec.spec.targets:
        if name not in heads:
            predicted[name] = _base_rate(codec, name, rows)
        elif codec.is_discrete(name):
            predicted[name] = _discrete(raw[f"{name}.logits"].double().cpu())
        else:
            predicted[name] = _box(raw, name, codec, rows)
    return predicted


def head_outputs(codec: TargetCodec) -> list[str]:
    """Names of the raw head outputs that `predictive_distributions` reads."""
    return [
        f"{name}.{output}"
        for name in codec.heads
        for output in (("logits",) if codec.is_discrete(name) else ("mean", "log_variance"))
    ]


def base_rate_distributions(codec: TargetCodec, rows: int) -> dict[str, TargetDistribution]:
    """Return the predictions that ignore the input: label frequencies, mean and variance."""
    return {name: _base_rate(codec, name, rows) for name in codec.spec.targets}


def _base_rate(codec: TargetCodec, name: str, rows: int) -> TargetDistribution:
    """Base rate of target *name*; its numbers are computed in Python, which is faster."""
    if codec.is_discrete(name):
        frequencies = torch.tensor(codec.frequencies[name], dtype=torch.float64)
        return DiscreteDistribution(probabilities=frequencies.expand(rows, -1))
    standardiser = codec.standardisers[name]
    dimensions = zip(standardiser.mean, standardiser.scale, standardiser.kept, strict=True)
    deviations = [
        scale if varies else 1e-3 * max(1.0, abs(mean)) for mean, scale, varies in dimensions
    ]
    variance = torch.tensor([each * each for each in deviations], dtype=torch.float64)
    mean = torch.tensor(standardiser.mean, dtype=torch.float64)
    return BoxDistribution(mean=mean.expand(rows, -1), variance=variance.expand(rows, -1))


def blend(
    ensemble: TargetDistributions,
    linear: TargetDistributions,
    base: TargetDistributions,
    weights: BlendWeights,
) -> dict[str, TargetDistribution]:
    """Mix two models and the base rate, target by target.

    Probabilities are mixed geometrically, not arithmetically: an outcome that either model
    considers impossible stays improbable, which ranks rare successes better.

    Args:
        weights: Weight of ensemble and linear model for each target, at most 1 together; the base
            rate has the rest. A target without weights keeps its base rate.
    """
    mixed: dict[str, TargetDistribution] = {}
    for name, first in ensemble.items():
        shares = weights.get(name, (0.0, 0.0))
        mixed[name] = blend_target(first, linear[name], base[name], shares)
    return mixed


def blend_target(
    ensemble: TargetDistribution,
    linear: TargetDistribution,
    base: TargetDistribution,
    weights: tuple[float, float],
) -> TargetDistribution:
    """Mix one target; see `blend`."""
    shares = (*weights, max(0.0, 1.0 - sum(weights)))
    parts = [pair for pair in zip(shares, (ensemble, linear, base), strict=True) if pair[0] > 1e-9]
    if isinstance(ensemble, DiscreteDistribution):
        logs = [
            share * _log(part.probabilities)
            for share, part in parts
            if isinstance(part, DiscreteDistribution)
        ]
        return DiscreteDistribution(probabilities=torch.stack(logs).sum(0).softmax(dim=1))
    boxes = [(share, part) for share, part in parts if isinstance(part, BoxDistribution)]
    mean = torch.stack([share * part.mean for share, part in boxes]).sum(0)
    second_moments = [
        share * (part.variance + (part.mean - mean).square()) for share, part in boxes
    ]
    return BoxDistribution(mean=mean, variance=torch.stack(second_moments).sum(0))


def shrink_to_base_rate(
    predicted: TargetDistributions, base: TargetDistributions, ood_N: Tensor
) -> dict[str, TargetDistribution]:
    """Mix out-of-distribution rows with `OOD_SHRINKAGE` of *base*; other rows are unchanged.

    Distributions are mixed, not their means, so an extreme mean widens the variance.

    Args:
        base: Base rates of the same rows.
        ood_N: Whether the row is out of distribution, bool.
    """
    if not torch.compiler.is_compiling() and not bool(ood_N.any()):
        return dict(predicted)
    kept = 1 - OOD_SHRINKAGE
    shrunk: dict[str, TargetDistribution] = {}
    for name, first in predicted.items():
        second = base[name]
        if isinstance(first, DiscreteDistribution) and isinstance(second, DiscreteDistribution):
            mixed = kept * first.probabilities + OOD_SHRINKAGE * second.probabilities
            probabilities = torch.where(ood_N[:, None], mixed, first.probabilities)
            shrunk[name] = DiscreteDistribution(probabilities=probabilities)
        elif isinstance(first, BoxDistribution) and isinstance(second, BoxDistribution):
            mean, variance = _mixture_moments(first, second, kept, OOD_SHRINKAGE)
            wide = Z_90 * variance.sqrt()
            shrunk[name] = replace(
                first,
                mean=torch.where(ood_N[:, None], mean, first.mean),
                variance=torch.where(ood_N[:, None], variance, first.variance),
                half_width=torch.where(ood_N[:, None], wide, first.half_width_90()),
            )
    return shrunk


def _mixture_moments(
    first: BoxDistribution, second: BoxDistribution, first_weight: float, second_weight: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a mixture of two Gaussians, ``[N, C]`` each."""
    mean = first_weight * first.mean + second_weight * second.mean
    within = first_weight * first.variance + second_weight * second.variance
    between = first_weight * second_weight * (first.mean - second.mean).square()
    return mean, within + between


def _box(raw: Mapping[str, Tensor], name: str, codec: TargetCodec, rows: int) -> BoxDistribution:
    standardiser = codec.standardisers[name]
    means_MNK = raw[f"{name}.mean"].double().cpu()
    log_variances_MNK = raw[f"{name}.log_variance"].double().cpu()
    variances_MNK = bounded_variance(log_variances_MNK, codec.min_log_variance)
    center_NK = means_MNK.mean(0)
    spread_NK = (means_MNK - center_NK).square_().mean(0)  # 25 times as fast as ``var``
    total_NK = variances_MNK.mean(0) + spread_NK
    mean_NK, variance_NK = standardiser.invert(center_NK, total_NK)
    mean_NC, variance_NC = mean_NK, variance_NK
    if not all(standardiser.kept):
        base = _base_rate(codec, name, rows)
        if not isinstance(base, BoxDistribution):
            raise TypeError(f"target {name!r} must be a Box")
        kept = [number for number, varies in enumerate(standardiser.kept) if varies]
        mean_NC, variance_NC = base.mean.clone(), base.variance.clone()
        mean_NC[:, kept], variance_NC[:, kept] = mean_NK, variance_NK
    return BoxDistribution(mean=mean_NC, variance=variance_NC)


def _discrete(logits_MNL: Tensor) -> DiscreteDistribution:
    return DiscreteDistribution(probabilities=logits_MNL.softmax(dim=2).mean(0))


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=SMALLEST_PROBABILITY).log()
