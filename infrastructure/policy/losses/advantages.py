"""Advantages of completions and of tokens. Never attached to a graph.

B sequences, S predicted tokens. Call these between rollout and training, not in a training step:
the group functions read the device to check their input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.policy.masked import check_token_values, last_valid, masked, masked_mean


def grpo_advantages(rewards_B: Tensor, groups_B: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """Return ``(r - mean) / (std + epsilon)`` within each group.

    arXiv:2402.03300, section 4.1.2. The standard deviation divides by G - 1, as in verl and TRL.
    Completions of a group whose rewards are all equal, also a single one, get exactly 0: their
    group has no information, and the rounding error of its mean is not magnified.

    Args:
        rewards_B: Reward of each completion, float32 or float64.
        groups_B: Group of each completion: any integers, equal for completions of one prompt.
        epsilon: Keeps a group of nearly equal rewards from dominating.

    Raises:
        TokenValueError: Wrong shape, or rewards in half precision.
        ValueError: A reward is not finite, or the groups are not integers.
    """
    deviation_B, size_B = _deviation_from_group(rewards_B, groups_B)
    variance_B = _group_sum(deviation_B.square(), groups_B) / (size_B - 1).clamp(min=1)
    return deviation_B / (variance_B.sqrt() + epsilon)


def dr_grpo_advantages(rewards_B: Tensor, groups_B: Tensor) -> Tensor:
    """Return ``r - mean`` within each group: arXiv:2503.20783, section 3.2.

    Without the division, prompts that are nearly always or nearly never solved do not weigh more
    than others. Arguments and errors as in `grpo_advantages`.
    """
    return _deviation_from_group(rewards_B, groups_B)[0]


def rloo_advantages(rewards_B: Tensor, groups_B: Tensor) -> Tensor:
    """Return each reward minus the mean of the others of its group: RLOO, arXiv:2402.14740.

    It equals ``(r - mean) G / (G - 1)``. A single completion gets 0. Arguments and errors as in
    `grpo_advantages`.
    """
    deviation_B, size_B = _deviation_from_group(rewards_B, groups_B)
    return deviation_B * size_B / (size_B - 1).clamp(min=1)


def final_rewards(rewards_B: Tensor, mask_BS: Tensor) -> Tensor:
    """Return rewards per token: each sequence's reward at its last valid token, 0 elsewhere.

    Args:
        rewards_B: Reward of each completion, float32 or float64.
        mask_BS: Valid tokens, bool. A row without one gets no reward.
    """
    check_token_values(mask_BS, rewards_B=rewards_B)
    return masked(rewards_B.detach()[:, None].expand(mask_BS.shape), last_valid(mask_BS))


def generalized_advantages(
    rewards_BS: Tensor,
    values_BS: Tensor,
    mask_BS: Tensor,
    *,
    discount: float = 1.0,
    gae_lambda: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Return generalised advantages and the returns that the value role learns, both ``[B, S]``.

    ``δ_t = r_t + discount V_{t+1} - V_t``, ``A_t = δ_t + discount λ A_{t+1}``, and the return is
    ``A_t + V_t``: arXiv:1506.02438, equation 16. t + 1 is the next *valid* token, so tokens
    inserted by a tool are skipped; after the last one, value and advantage are 0 (the episode has
    ended). Results are detached: neither loss sends gradients into the values they came from.

    Args:
        rewards_BS: Reward of each token, see `final_rewards`.
        values_BS: Value of the state in which each token was chosen.
        mask_BS: Valid tokens, bool.
        discount: Factor of the value one token later.
        gae_lambda: λ. 1: return minus value; 0: one-step error.
    """
    check_token_values(mask_BS, rewards_BS=rewards_BS, values_BS=values_BS)
    return gae(rewards_BS, values_BS, mask_BS, discount=discount, gae_lambda=gae_lambda)


def gae(
    rewards_BS: Tensor,
    values_BS: Tensor,
    mask_BS: Tensor,
    *,
    discount: float = 1.0,
    gae_lambda: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """As `generalized_advantages`, unchecked and in the type of *values_BS*, also a half one."""
    values_BS = masked(values_BS.detach(), mask_BS)
    rewards_BS = masked(rewards_BS.detach().to(values_BS.dtype), mask_BS)
    advantages_BS = torch.zeros_like(values_BS)
    advantage_B = next_value_B = torch.zeros_like(values_BS[:, 0])
    for s in reversed(range(mask_BS.shape[1])):
        error_B = rewards_BS[:, s] + discount * next_value_B - values_BS[:, s]
        updated_B = error_B + discount * gae_lambda * advantage_B
        advantage_B = torch.where(mask_BS[:, s], updated_B, advantage_B)
        next_value_B = torch.where(mask_BS[:, s], values_BS[:, s], next_value_B)
        advantages_BS[:, s] = advantage_B
    advantages_BS = masked(advantages_BS, mask_BS)
    return advantages_BS, advantages_BS + values_BS


def reinforce_plus_plus_advantages(
    rewards_B: Tensor,
    old_log_probs_BS: Tensor,
    reference_log_probs_BS: Tensor,
    mask_BS: Tensor,
    *,
    kl_coefficient: float = 0.01,
) -> Tensor:
    """Return REINFORCE++'s advantages of tokens, ``[B, S]``: no group, no learned value.

    ``A_t = r - β Σ_{i≥t} KL_i`` with ``KL_t = log π_old - log π_ref``, then whitened over all
    tokens of the batch: arXiv:2501.03262, the variant with one completion for each prompt. To be
    used with `ppo_loss`.

    Args:
        rewards_B: Reward of each completion, float32 or float64.
        old_log_probs_BS: Log-probabilities of the policy that is about to be updated.
        reference_log_probs_BS: Those of the policy that training began with.
        mask_BS: Valid tokens, bool.
        kl_coefficient: β.
    """
    check_token_values(
        mask_BS,
        old_log_probs_BS=old_log_probs_BS,
        reference_log_probs_BS=reference_log_probs_BS,
    )
    kl_BS = masked((old_log_probs_BS - reference_log_probs_BS).detach(), mask_BS)
    rewards_BS = final_rewards(rewards_B, mask_BS) - kl_coefficient * kl_BS
    remaining_BS = rewards_BS.flip(1).cumsum(dim=1).flip(1)
    return whitened(remaining_BS, mask_BS)


def whitened(advantages_BS: Tensor, mask_BS: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """Return advantages with mean 0 and variance 1 over all valid tokens of the batch.

    Every token counts the same; the mean of each sequence's mean would favour short ones. One
    valid token, or equal advantages, give 0.
    """
    check_token_values(mask_BS, advantages_BS=advantages_BS)
    advantages_BS = masked(advantages_BS.detach(), mask_BS)
    deviation_BS = masked(advantages_BS - masked_mean(advantages_BS, mask_BS), mask_BS)
    variance = deviation_BS.square().sum() / (mask_BS.sum() - 1).clamp(min=1)
    return deviation_BS / (variance.sqrt() + epsilon)


def _deviation_from_group(rewards_B: Tensor, groups_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return each reward minus its group's mean, and its group's size."""
    check_token_values(torch.ones_like(rewards_B, dtype=torch.bool)[:, None], rewards_B=rewards_B)
    if groups_B.shape != rewards_B.shape or groups_B.is_floating_point():
        raise ValueError(
            f"groups_B must hold one integer for each of {len(rewards_B)} rewards, got "
            f"{groups_B.dtype} of shape {tuple(groups_B.shape)}"
        )
    rewards_B = rewards_B.detach()
    if not rewards_B.isfinite().all():
        rows = (~rewards_B.isfinite()).nonzero().flatten().tolist()
        raise ValueError(f"rewards of the completions {rows[:8]} are not finite; check the task")
    size_B = _group_sum(torch.ones_like(rewards_B), groups_B)
    low_B, high_B = (_group_extreme(rewards_B, groups_B, which) for which in ("amin", "amax"))
    deviation_B = rewards_B - _group_sum(rewards_B, groups_B) / size_B
    return masked(deviation_B, low_B != high_B), size_B


def _group_sum(values_B: Tensor, groups_B: Tensor) -> Tensor:
    index_B = groups_B.unique(return_inverse=True)[1]
    return torch.zeros_like(values_B).index_add(0, index_B, values_B)[index_B]


def _group_extreme(values_B: Tensor, groups_B: Tensor, which: str) -> Tensor:
    index_B = groups_B.unique(return_inverse=True)[1]
    empty_B = torch.zeros_like(values_B)
    return empty_B.scatter_reduce(0, index_B, values_B, which, include_self=False)[index_B]
