"""The arithmetic of PPO in the types of its tensors, so that a role may be in half precision.

The losses of `infrastructure.policy` refuse half precision; these functions compute in the types
they are given, as a training without FP32 does. In float32 both agree.

Legend: B sequences, T tokens, S = T - 1 predicted tokens, V vocabulary. Masks are bool; values at
masked positions are ignored and 0 in results.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from infrastructure.policy.masked import last_valid, masked, masked_mean
from infrastructure.policy.tokens import TokenBatch


def log_probs_of(logits_BTV: Tensor, batch: TokenBatch, temperature: float) -> Tensor:
    """Log-probability of each token of the completions, [B, S], in the type of the logits.

    In float32 it equals `infrastructure.policy.log_probs_of_logits` without truncation, which
    always casts to float32 before the softmax.
    """
    tokens_BS1 = batch.predicted_tokens_BS.unsqueeze(-1)
    log_probs_BSV = (logits_BTV[:, :-1] / temperature).log_softmax(-1)
    return masked(log_probs_BSV.gather(-1, tokens_BS1).squeeze(-1), batch.response_mask_BS)


def whitened(advantages_BS: Tensor, mask_BS: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """*advantages_BS* with mean 0 and variance 1 over all valid tokens, in their type.

    *epsilon* is added to the standard deviation; FP16 rounds the default to 0, as a training in
    FP16 would.
    """
    deviation_BS = masked(advantages_BS - masked_mean(advantages_BS, mask_BS), mask_BS)
    count = (mask_BS.sum() - 1).clamp(min=1).to(advantages_BS.dtype)
    return deviation_BS / ((deviation_BS.square().sum() / count).sqrt() + epsilon)


def shaped_rewards(
    rewards_B: Tensor, kl_BS: Tensor, mask_BS: Tensor, kl_coefficient: float
) -> Tensor:
    """Reward of each token, [B, S]: minus the KL penalty, and at the last token the reward.

    In the type of *kl_BS*. The form of arXiv:2203.02155, section 3.5, token by token.
    """
    rewards_BS = rewards_B.to(kl_BS.dtype)[:, None].expand(mask_BS.shape)
    final_BS = masked(rewards_BS, last_valid(mask_BS))
    return masked(final_BS - kl_coefficient * kl_BS, mask_BS)


def ratio_of(log_probs_BS: Tensor, old_log_probs_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """Probability ratio of policy and old policy, in the type of *log_probs_BS*; 0 if masked."""
    difference_BS = log_probs_BS - old_log_probs_BS.to(log_probs_BS.dtype)
    return masked(masked(difference_BS, mask_BS).exp(), mask_BS)


def clipped_surrogate(
    ratio_BS: Tensor, advantages_BS: Tensor, mask_BS: Tensor, *, clip: float = 0.2
) -> Tensor:
    """PPO's policy loss (arXiv:1707.06347, equation 7), [], in the type of *ratio_BS*."""
    advantages_BS = advantages_BS.detach().to(ratio_BS.dtype)
    clipped_BS = ratio_BS.clamp(1 - clip, 1 + clip) * advantages_BS
    return masked_mean(-torch.minimum(ratio_BS * advantages_BS, clipped_BS), mask_BS)


def squared_error(values_BS: Tensor, returns_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """Half the mean squared error of the values, [], in the type of *values_BS*."""
    errors_BS = masked(values_BS - returns_BS.detach().to(values_BS.dtype), mask_BS)
    return masked_mean(errors_BS.square() / 2, mask_BS)


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Rows of all *parts*, [B] or [B, S]; those with fewer columns are padded on the right."""
    if parts[0].ndim == 1:
        return torch.cat(list(parts))
    columns = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, columns - part.shape[1])) for part in parts])
