"""The training loss: likelihoods of raw head outputs, in float32.

Shapes: F networks in a fleet, M members, N rows, K dimensions, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.fleet.losses import StackableLoss, cross_entropy_of_each, mean_of_each
from infrastructure.trajectories.encoding.targets import MIN_LOG_VARIANCE

MAX_LOG_VARIANCE = 4.0
TARGET_PREFIX = "target."


def bound_log_variance(raw: Tensor) -> Tensor:
    """Squash *raw* smoothly between the bounds; the gradient vanishes at neither."""
    upper = MAX_LOG_VARIANCE - functional.softplus(MAX_LOG_VARIANCE - raw)
    return MIN_LOG_VARIANCE + functional.softplus(upper - MIN_LOG_VARIANCE)


def bounded_variance(raw: Tensor, min_log_variance: float = MIN_LOG_VARIANCE) -> Tensor:
    """``bound_log_variance(raw).exp()`` but for rounding, in a fifth of the time.

    The logarithms and exponentials cancel, and one sigmoid remains.

    Args:
        min_log_variance: Lower bound with which the network was trained.
    """
    share = torch.sub(raw, MAX_LOG_VARIANCE).sigmoid_()
    return share.mul_(math.exp(MAX_LOG_VARIANCE)).add_(math.exp(min_log_variance))


def ensemble_loss(forward: Forward, batch: Batch) -> Tensor:
    """Mean negative log-likelihood over members, rows and targets, ``[]`` float32.

    The likelihood of a `Box` is weighted by the predicted standard deviation, held constant
    (beta-NLL with beta 1/2, Seitzer et al. 2022). Without the weight, nearly certain values (most
    changes of score are exactly 0) reward variances near 0 without bound, and a single error there
    causes a loss spike that drowns the gradients of all other heads.

    Args:
        forward: Network as the trainer passes it; returns float32.
        batch: ``Features.inputs`` plus ``target.NAME``: ``[N, K]`` float32 or ``[N]`` int64.
    """
    inputs = {name: item for name, item in batch.items() if not name.startswith(TARGET_PREFIX)}
    targets = {
        name.removeprefix(TARGET_PREFIX): item
        for name, item in batch.items()
        if name.startswith(TARGET_PREFIX)
    }
    return _LIKELIHOOD(forward(inputs), targets)


def _loss_alone(raw: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
    losses = []
    for name, target in targets.items():
        logits_MNL = raw.get(f"{name}.logits")
        if logits_MNL is None:
            losses.append(_weighted_nll(raw, name, target).mean())
        else:
            labels = target.repeat(len(logits_MNL))
            losses.append(functional.cross_entropy(logits_MNL.flatten(0, 1), labels))
    return torch.stack(losses).mean()


def _losses_stacked(raw: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
    """`_loss_alone` of stacks, ``[F]``: the same operations, but means and labels per network."""
    losses = []
    for name, target in targets.items():
        logits_FMNL = raw.get(f"{name}.logits")
        if logits_FMNL is None:
            losses.append(mean_of_each(_weighted_nll(raw, name, target.unsqueeze(1))))
        else:
            labels = target.repeat(1, logits_FMNL.shape[1])
            losses.append(cross_entropy_of_each(logits_FMNL.flatten(1, 2), labels))
    return torch.stack(losses, dim=1).mean(1)


_LIKELIHOOD = StackableLoss(alone=_loss_alone, stacked=_losses_stacked)


def _weighted_nll(raw: Mapping[str, Tensor], name: str, target: Tensor) -> Tensor:
    """Weighted negative log-likelihood of a `Box`, ``[..., M, N, K]``."""
    log_variance_MNK = bound_log_variance(raw[f"{name}.log_variance"])
    squared_MNK = (raw[f"{name}.mean"] - target).square()
    nll_MNK = 0.5 * (log_variance_MNK + squared_MNK * (-log_variance_MNK).exp())
    deviation_MNK = (0.5 * log_variance_MNK.detach()).exp()
    return deviation_MNK * nll_MNK
