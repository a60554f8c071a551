"""Estimators of the KL divergence from sampled tokens, and the penalty to a reference policy.

B sequences, S predicted tokens. With tokens sampled from the policy and r = log p(reference) -
log p(policy), Schulman (joschu.net/blog/kl-approx.html) names three estimators of
KL(policy || reference): k1 = -r, k2 = r²/2, k3 = exp(r) - 1 - r.

Their gradients as a loss differ (arXiv:2506.09477, section 3): that of k1 has expectation zero,
that of k2 is the gradient of KL(policy || reference), and that of k3 is the gradient of
KL(reference || policy).
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from infrastructure.policy.losses.inputs import LossInputs, PolicyLoss
from infrastructure.policy.losses.reductions import Reduction, token_mean
from infrastructure.policy.masked import masked_mean

KL_BOUND = 10.0
"""k3 clamps r to this (as the precision experiments of dtype-rlhf do): beyond it k3 is constant."""

_SERIES_BELOW = 1e-2


class KLEstimator(StrEnum):
    """Name of an estimator."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


def kl_estimate(log_ratio: Tensor, estimator: KLEstimator) -> Tensor:
    """Return the estimate per token, in the dtype of *log_ratio*.

    k3 is exact to rounding also for tiny log-ratios, where ``exp(r) - 1 - r`` in float32 returns
    0 or negative numbers: below 0.01 it is the Taylor series r²/2 (1 + r/3 (1 + r/4)).

    Args:
        log_ratio: ``log p(reference) - log p(policy)``, r above, any shape, float32 or float64.
        estimator: Which one.
    """
    if estimator is KLEstimator.K1:
        return -log_ratio
    if estimator is KLEstimator.K2:
        return log_ratio.square() / 2
    bounded = log_ratio.clamp(-KL_BOUND, KL_BOUND)
    series = bounded.square() / 2 * (1 + bounded / 3 * (1 + bounded / 4))
    return torch.where(bounded.abs() < _SERIES_BELOW, series, bounded.expm1() - bounded)


def kl_loss(
    inputs: LossInputs,
    estimator: KLEstimator = KLEstimator.K3,
    *,
    reduction: Reduction = token_mean,
) -> PolicyLoss:
    """Return the KL penalty to the reference, to be added to a policy loss with a coefficient.

    GRPO (arXiv:2402.03300, equation 4) uses k3. The weights of the inputs' correction apply: the
    expectation is over the policy's tokens, the sample is of the rollout's.

    Args:
        inputs: Batch with reference log-probabilities.
        estimator: Which one; k1 is refused, because its gradient is noise with mean zero.
        reduction: From tokens to the scalar; the same as for the policy loss.

    Raises:
        ValueError: *estimator* is k1; its estimate belongs into the reward.
        TokenValueError: The inputs have no reference.
    """
    if estimator is KLEstimator.K1:
        raise ValueError(
            "the gradient of k1 has expectation zero; use k2 or k3 as a loss, or subtract k1 from "
            "the rewards"
        )
    kl_BS = kl_estimate(-inputs.reference_log_ratio_BS, estimator)
    kl = masked_mean(kl_BS.detach(), inputs.mask_BS)
    return PolicyLoss(reduction(inputs.weighted(kl_BS), inputs.mask_BS), {"reference_kl": kl})
