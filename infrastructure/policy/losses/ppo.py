"""PPO: the clipped surrogate with a learned value of each token.

B sequences, S predicted tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.policy.losses.inputs import LossInputs, PolicyLoss
from infrastructure.policy.losses.reductions import Reduction, token_mean
from infrastructure.policy.losses.surrogate import Clip, token_surrogate_loss
from infrastructure.policy.masked import check_token_values, masked_mean


def ppo_loss(
    inputs: LossInputs, clip: Clip | None = None, *, reduction: Reduction = token_mean
) -> PolicyLoss:
    """Return PPO's policy loss.

    ``-min(r_it A_it, clamp(r_it, 1 - low, 1 + high) A_it)``, mean over tokens: arXiv:1707.06347,
    equation 7, with the advantages of `generalized_advantages`.

    Args:
        inputs: Batch; a correction multiplies the loss of each token.
        clip: Range of the ratio, 0.2 on both sides if None.
        reduction: From tokens to the scalar.
    """
    return token_surrogate_loss(inputs, clip or Clip(), reduction)


def value_loss(
    values_BS: Tensor,
    old_values_BS: Tensor,
    returns_BS: Tensor,
    mask_BS: Tensor,
    *,
    clip: float | None = 0.2,
    reduction: Reduction = token_mean,
) -> PolicyLoss:
    """Return the clipped loss of the value role.

    ``1/2 max((V - R)², (V_old + clamp(V - V_old, ±clip) - R)²)``: the form of OpenAI's PPO
    (arXiv:2005.12729, section 3, item 1). It has no gradient where the value has already moved by
    more than *clip* towards its return.

    Args:
        values_BS: Predictions of the value role, attached to the graph.
        old_values_BS: Those of the round's start, which the advantages were computed from.
        returns_BS: Targets; gradients never flow into them.
        mask_BS: Valid tokens, bool.
        clip: Largest useful change of a value in a round. None: squared error.
        reduction: From tokens to the scalar.

    Raises:
        TokenValueError: A tensor has the wrong shape or is in half precision.
    """
    check_token_values(
        mask_BS, values_BS=values_BS, old_values_BS=old_values_BS, returns_BS=returns_BS
    )
    values_BS, old_values_BS, returns_BS = (
        torch.where(mask_BS, tensor, torch.zeros_like(tensor))
        for tensor in (values_BS, old_values_BS.detach(), returns_BS.detach())
    )
    error_BS = (values_BS - returns_BS).square()
    clipped_BS = torch.zeros_like(mask_BS)
    if clip is not None:
        near_BS = old_values_BS + (values_BS - old_values_BS).clamp(-clip, clip)
        near_error_BS = (near_BS - returns_BS).square()
        clipped_BS = near_error_BS > error_BS
        error_BS = torch.maximum(error_BS, near_error_BS)
    stats = {"value_clipped_fraction": masked_mean(clipped_BS.to(values_BS.dtype), mask_BS)}
    return PolicyLoss(reduction(error_BS / 2, mask_BS), stats)
