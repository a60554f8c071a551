"""The losses of the settings: their advantages, the networks beside the policy, the scalar.

Legend: B sequences, T tokens, S = T - 1 predicted tokens, H features of the last hidden layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn

from agents.policy.settings import LossName
from infrastructure.agent_contract.training_job import Batch
from infrastructure.policy.losses import (
    Clip,
    LossInputs,
    dr_grpo_loss,
    flowrl_loss,
    grpo_loss,
    gspo_loss,
    ppo_loss,
    value_loss,
)
from infrastructure.policy.losses.advantages import (
    dr_grpo_advantages,
    final_rewards,
    generalized_advantages,
    grpo_advantages,
    whitened,
)
from infrastructure.policy.losses.log_partition import LogPartition
from infrastructure.policy.losses.reductions import (
    Reduction,
    constant_length,
    sequence_mean,
    token_mean,
)

NETWORKS: Mapping[LossName, str] = MappingProxyType({"flowrl": "log_partition", "ppo": "value"})
"""Name, in the policy, of the network that a loss trains beside it."""

_CLIP = Clip(low=0.2, high=0.28)  # DAPO's "clip-higher", arXiv:2503.14476
_VALUE_COEFFICIENT = 0.5  # arXiv:1707.06347, section 6.1, uses 1 with shared parameters


class ValueNetwork(nn.Module):
    """Predicts the reward of a completion before each of its tokens, from the policy's features.

    Its gradients do not flow into the policy. As the role ``value`` it computes in FP32.

    Args:
        hidden_size: H.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 1)
        )

    def forward(self, hidden_BTH: Tensor) -> Tensor:
        """Value of the state in which each predicted token is chosen, [B, S] float32."""
        return cast(Tensor, self.network(hidden_BTH[:, :-1].detach())).squeeze(2)


def add_network(model: nn.Module, loss: LossName, seed: int) -> None:
    """Give *model* the network that *loss* trains beside it, with random weights, if it has one."""
    if loss not in NETWORKS:
        return
    hidden_size = int(cast(int, model.config.hidden_size))  # type: ignore[union-attr]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module
        if loss == "flowrl":  # without dropout: the loss stays a function of weights and batch
            network = LogPartition(hidden_size, dropout=0.0)
        else:
            network = ValueNetwork(hidden_size)
    setattr(model, NETWORKS[loss], network)


def remove_networks(model: nn.Module) -> None:
    """Leave the policy alone, as it is used and published."""
    for name in NETWORKS.values():
        if hasattr(model, name):
            delattr(model, name)


def advantages(
    loss: LossName,
    rewards_B: Tensor,
    groups_B: Tensor,
    mask_BS: Tensor,
    values_BS: Tensor | None,
) -> dict[str, Tensor]:
    """What *loss* needs of the rewards of a round; ``advantages`` has the shape [B] or [B, S].

    Args:
        groups_B: Prompt of each completion.
        mask_BS: Tokens of the completions.
        values_BS: Those of PPO's network before the round's steps; else None.
    """
    if values_BS is not None:
        rewards_BS = final_rewards(rewards_B, mask_BS)
        found_BS, returns_BS = generalized_advantages(rewards_BS, values_BS, mask_BS)
        return {
            "advantages": whitened(found_BS, mask_BS),
            "old_values_BS": values_BS,
            "returns_BS": returns_BS,
        }
    relative = dr_grpo_advantages if loss == "dr_grpo" else grpo_advantages
    return {"advantages": relative(rewards_B, groups_B)}


def reduction_of(loss: LossName, max_length: int) -> Reduction:
    """How *loss* goes from tokens to a scalar, for a penalty that is added to it."""
    if loss == "dr_grpo":
        return partial(constant_length, max_length=max_length)
    return token_mean if loss == "ppo" else sequence_mean


def policy_loss(
    loss: LossName, inputs: LossInputs, batch: Batch, network: Tensor | None, max_length: int
) -> Tensor:
    """The scalar of *loss*, with that of its network.

    Args:
        batch: What `advantages` has returned for these sequences.
        network: Result of its network: log Z, [B], or values, [B, S].
        max_length: Limit of new tokens of the rollout.
    """
    match loss:
        case "dr_grpo":
            return dr_grpo_loss(inputs, _CLIP, max_length=max_length).loss
        case "grpo":
            return grpo_loss(inputs, _CLIP).loss
        case "gspo":
            return gspo_loss(inputs).loss
        case "flowrl":
            return flowrl_loss(inputs, network).loss
        case "ppo":
            values_BS = cast(Tensor, network)
            of_values = value_loss(
                values_BS, batch["old_values_BS"], batch["returns_BS"], inputs.mask_BS
            )
            return ppo_loss(inputs, _CLIP).loss + _VALUE_COEFFICIENT * of_values.loss
