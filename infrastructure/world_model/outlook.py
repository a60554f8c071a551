"""What a model expects of each target, as distributions in recorded units.

Shapes: M members, N rows, C declared dimensions of a `Box`, L labels of a `Discrete`.
All float64, on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories.schema import as_vector, label_of, target_value
from infrastructure.trajectories.targets import TargetCodec
from infrastructure.world_model.heads import bound_log_variance
from infrastructure.world_model.metrics import SMALLEST_PROBABILITY


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxOutlook:
    """Attributes:
    mean, variance: ``[N, C]``, moments of a Gaussian (of the change, for a delta target).
    epistemic: ``[N]`` in [0, 1]: share of the variance that is disagreement of members.
    """

    mean: Tensor
    variance: Tensor
    epistemic: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteOutlook:
    """Attributes:
    probabilities: ``[N, L]``, each row adding up to 1.
    epistemic: ``[N]`` in [0, 1]: mutual information between outcome and member, as a share
        of the entropy.
    """

    probabilities: Tensor
    epistemic: Tensor

    def log_odds(self, label: int) -> Tensor:
        """Of *label* against all others, ``[N]``."""
        return _log(self.probabilities[:, label]) - _log(1.0 - self.probabilities[:, label])


DOUBT = 0.9
"""Share of the base rate in what is expected of inputs unlike all that was seen: nothing is
claimed of them, and yet the order among them stays."""

TargetOutlook: TypeAlias = BoxOutlook | DiscreteOutlook
Outlook: TypeAlias = Mapping[str, TargetOutlook]
Outcomes: TypeAlias = Mapping[str, Tensor]
"""What came true: ``[N, C]`` float64 of a `Box`, ``[N]`` int64 of a `Discrete` target."""


def outlook_of(
    raw: Mapping[str, Tensor], codec: TargetCodec, rows: int
) -> dict[str, TargetOutlook]:
    """Turn raw head outputs, float32, into what they mean; constant targets get base rates."""
    outlook = base_outlook(codec, rows)
    for name in codec.heads:
        if codec.is_discrete(name):
            outlook[name] = _discrete(raw[f"{name}.logits"].double().cpu())
        else:
            outlook[name] = _box(raw, name, codec, outlook[name])
    return outlook


def base_outlook(codec: TargetCodec, rows: int) -> dict[str, TargetOutlook]:
    """What is expected without looking at the input: label frequencies, mean and variance."""
    outlook: dict[str, TargetOutlook] = {}
    nothing = torch.zeros(rows, dtype=torch.float64)
    for name in codec.spec.targets:
        if codec.is_discrete(name):
            frequencies = torch.tensor(codec.frequencies[name], dtype=torch.float64)
            outlook[name] = DiscreteOutlook(
                probabilities=frequencies.expand(rows, -1), epistemic=nothing
            )
            continue
        standardiser = codec.standardisers[name]
        mean = torch.tensor(standardiser.mean, dtype=torch.float64)
        deviation = torch.tensor(standardiser.scale, dtype=torch.float64)
        constant = 1e-3 * mean.abs().clamp(min=1.0)
        deviation = torch.where(torch.tensor(standardiser.kept), deviation, constant)
        outlook[name] = BoxOutlook(
            mean=mean.expand(rows, -1),
            variance=deviation.square().expand(rows, -1),
            epistemic=nothing,
        )
    return outlook


def blend(ensemble: Outlook, linear: Outlook, weight: float) -> dict[str, TargetOutlook]:
    """Mix two outlooks, *weight* on the ensemble's; what is epistemic stays the ensemble's.

    Probabilities are multiplied rather than added: an event that either thinks impossible stays
    improbable, which ranks rare successes better.
    """
    mixed: dict[str, TargetOutlook] = {}
    for name, first in ensemble.items():
        second = linear[name]
        if isinstance(first, DiscreteOutlook) and isinstance(second, DiscreteOutlook):
            first_log, second_log = map(_log, (first.probabilities, second.probabilities))
            probabilities = (weight * first_log + (1 - weight) * second_log).softmax(dim=1)
            mixed[name] = DiscreteOutlook(probabilities=probabilities, epistemic=first.epistemic)
        elif isinstance(first, BoxOutlook) and isinstance(second, BoxOutlook):
            mean = weight * first.mean + (1 - weight) * second.mean
            within = weight * first.variance + (1 - weight) * second.variance
            between = weight * (1 - weight) * (first.mean - second.mean).square()
            mixed[name] = BoxOutlook(
                mean=mean, variance=within + between, epistemic=first.epistemic
            )
    return mixed


def doubt(outlook: Outlook, base: Outlook, outside_N: Tensor) -> dict[str, TargetOutlook]:
    """Mix *outlook* with `DOUBT` of *base* in the rows *outside*; the others stay as they are.

    The mixture is that of the distributions, so a far-fetched mean widens the variance; what
    the base contributes counts as epistemic.
    """
    doubted: dict[str, TargetOutlook] = {}
    for name, first in outlook.items():
        second = base[name]
        epistemic = torch.where(outside_N, 1 - (1 - DOUBT) * (1 - first.epistemic), first.epistemic)
        if isinstance(first, DiscreteOutlook) and isinstance(second, DiscreteOutlook):
            mixed = (1 - DOUBT) * first.probabilities + DOUBT * second.probabilities
            probabilities = torch.where(outside_N[:, None], mixed, first.probabilities)
            doubted[name] = DiscreteOutlook(probabilities=probabilities, epistemic=epistemic)
        elif isinstance(first, BoxOutlook) and isinstance(second, BoxOutlook):
            mean = (1 - DOUBT) * first.mean + DOUBT * second.mean
            within = (1 - DOUBT) * first.variance + DOUBT * second.variance
            between = DOUBT * (1 - DOUBT) * (first.mean - second.mean).square()
            doubted[name] = BoxOutlook(
                mean=torch.where(outside_N[:, None], mean, first.mean),
                variance=torch.where(outside_N[:, None], within + between, first.variance),
                epistemic=epistemic,
            )
    return doubted


def outcomes_of(codec: TargetCodec, transitions: Sequence[Transition]) -> dict[str, Tensor]:
    """What came true in *transitions*; see `Outcomes`."""
    outcomes = {}
    for name in codec.spec.targets:
        values = [target_value(codec.spec, transition, name) for transition in transitions]
        if codec.is_discrete(name):
            position = {label: index for index, label in enumerate(codec.labels(name))}
            outcomes[name] = torch.tensor([position[label_of(value)] for value in values])
        else:
            outcomes[name] = torch.from_numpy(np.array([as_vector(v) for v in values], np.float64))
    return outcomes


def _box(
    raw: Mapping[str, Tensor], name: str, codec: TargetCodec, base: TargetOutlook
) -> BoxOutlook:
    if not isinstance(base, BoxOutlook):
        raise TypeError(f"target {name!r} is no Box")
    standardiser = codec.standardisers[name]
    means_MNK = raw[f"{name}.mean"].double().cpu()
    variances_MNK = bound_log_variance(raw[f"{name}.log_variance"].double().cpu()).exp()
    spread_NK = means_MNK.var(dim=0, correction=0)
    total_NK = variances_MNK.mean(0) + spread_NK
    mean_NK, variance_NK = standardiser.invert(means_MNK.mean(0), total_NK)
    kept = torch.tensor(standardiser.kept)
    mean_NC, variance_NC = base.mean.clone(), base.variance.clone()
    mean_NC[:, kept], variance_NC[:, kept] = mean_NK, variance_NK
    return BoxOutlook(
        mean=mean_NC, variance=variance_NC, epistemic=(spread_NK / total_NK).mean(dim=1)
    )


def _discrete(logits_MNL: Tensor) -> DiscreteOutlook:
    members_MNL = logits_MNL.softmax(dim=2)
    mean_NL = members_MNL.mean(0)
    total_N, aleatoric_N = _entropy(mean_NL), _entropy(members_MNL).mean(0)
    share_N = ((total_N - aleatoric_N) / total_N.clamp(min=1e-9)).clamp(0.0, 1.0)
    return DiscreteOutlook(probabilities=mean_NL, epistemic=share_N)


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=SMALLEST_PROBABILITY).log()


def _entropy(probabilities: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy
