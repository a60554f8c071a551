"""An experiment from a language model in a folder, which has no task and no rewards of its own.

Legend: B sequences, S predicted tokens.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.events.role_precision import FP32
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.losses.advantages import whitened
from infrastructure.policy.masked import masked_mean
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.precision_lab.environment import fixed_numerics
from infrastructure.precision_lab.experiments import PolicyExperiment, PolicyTraining
from infrastructure.precision_lab.freezing.assembly import PolicyWeights, assembled_experiment
from infrastructure.precision_lab.small_policy import BasePolicy
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.roles import RoleForward


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseModelSize:
    """How much is frozen, and how far the policy moves.

    Attributes:
        batches: Number of batches.
        batch_size: Sequences in a batch.
        max_new_tokens: A completion is cut there.
        updates: Updates from the reference to the old policy, and from that to the policy.
        learning_rate: Of Adam.
    """

    batches: int = 4
    batch_size: int = 8
    max_new_tokens: int = 32
    updates: int = 2
    learning_rate: float = 1e-5


def base_model_experiment(
    base: BasePolicy, device: torch.device, size: BaseModelSize, *, seed: int
) -> PolicyExperiment:
    """Generate completions and take a few steps towards completions of different tokens.

    The reward is synthetic: the share of different tokens in a completion. The reference has the
    weights of *base*; ``updates`` steps by REINFORCE lead from it to the old policy, as many more
    to the policy. At a temperature of 1.

    Args:
        base: Model, tokenizer and prompts; one prompt a sequence, repeated as needed.
        device: Where to compute.
        size: How much.
        seed: Of the completions.
    """
    training = PolicyTraining(
        temperature=1.0, pad_token=base.special.pad, stop_tokens=sorted(base.special.stop)
    )
    reference = base.model.to(device).eval()
    with fixed_numerics():
        old = copy.deepcopy(reference)
        _learn(old, *_generated(base, old, training, size, 1, seed + 1), size)
        batches, rewards = _generated(base, old, training, size, size.batches, seed)
        policy = copy.deepcopy(old)
        _learn(policy, batches[:1], rewards[:1], size)
        return assembled_experiment(
            PolicyWeights(reference=reference, old=old, policy=policy),
            batches,
            rewards,
            training,
            seed=seed,
            frozen_batches=size.batches,
        )


def _generated(
    base: BasePolicy,
    model: Module,
    training: PolicyTraining,
    size: BaseModelSize,
    batches: int,
    seed: int,
) -> tuple[list[TokenBatch], list[Tensor]]:
    """Completions of the first prompts, and their rewards."""
    device = next(model.parameters()).device
    engine = TransformersRollout(
        RoleForward(model, device, FP32),
        pad_token=training.pad_token,
        stop_tokens=training.stop_tokens,
    )
    found = []
    for number in range(batches):
        first = number * size.batch_size
        prompts = [
            base.prompts[(first + row) % len(base.prompts)] for row in range(size.batch_size)
        ]
        found.append(
            engine.generate(
                prompts,
                sampling=Sampling(temperature=training.temperature),
                max_new_tokens=size.max_new_tokens,
                seed=seed * 1000 + number,
            )
        )
    return found, [_synthetic_rewards(each) for each in found]


def _synthetic_rewards(batch: TokenBatch) -> Tensor:
    """Share of different tokens in each completion, [B] float32."""
    shares = [len(set(tokens)) / len(tokens) for tokens in batch.responses()]
    return torch.tensor(shares, device=batch.tokens_BT.device)


def _learn(
    model: Module, batches: list[TokenBatch], rewards: list[Tensor], size: BaseModelSize
) -> None:
    """Take ``updates`` steps by REINFORCE on the batches in turn."""
    device = next(model.parameters()).device
    forward = PrecisionForward(model, device, Precision.FP32)
    optimizer = torch.optim.Adam(model.parameters(), lr=size.learning_rate)
    for step in range(size.updates):
        batch, rewards_B = batches[step % len(batches)], rewards[step % len(batches)]
        mask_BS = batch.response_mask_BS
        advantages_BS = whitened(rewards_B[:, None].expand(mask_BS.shape), mask_BS)
        log_probs_BS = token_log_probs(forward, batch, Sampling())
        (-masked_mean(advantages_BS * log_probs_BS, mask_BS)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
