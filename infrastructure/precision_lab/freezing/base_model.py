"""An experiment from a language model in a folder, which has no task and no rewards of its own.

Legend: B sequences, S predicted tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.events.role_precision import FP32
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.losses.advantages import whitened
from infrastructure.policy.masked import masked_mean
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.precision_lab.environment import fixed_numerics
from infrastructure.precision_lab.experiments import PolicyExperiment, PolicyTraining
from infrastructure.precision_lab.freezing.assembly import PolicyWeights, assembled_experiment
from infrastructure.precision_lab.progress import unreported
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
    base: BasePolicy,
    device: torch.device,
    size: BaseModelSize,
    *,
    seed: int,
    progress: ReportProgress = unreported,
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
        progress: Told of each batch of completions.
    """
    training = PolicyTraining(
        temperature=1.0, pad_token=base.special.pad, stop_tokens=sorted(base.special.stop)
    )
    reference = base.model.to(device).eval()
    with fixed_numerics():
        total, unit = size.batches + 1, "batches of completions"
        progress(0, total, unit=unit)
        old = copy.deepcopy(reference)
        batch = _generated(base, old, training, size, number=0, seed=seed + 1)
        _learn(old, [batch], size)
        batches = []
        for number in range(size.batches):
            progress(number + 1, total, unit=unit)
            batches.append(_generated(base, old, training, size, number=number, seed=seed))
        progress(total, total, unit=unit)
        policy = copy.deepcopy(old)
        _learn(policy, batches[:1], size)
        return assembled_experiment(
            PolicyWeights(reference=reference, old=old, policy=policy),
            batches,
            [_synthetic_rewards(batch) for batch in batches],
            training,
            seed=seed,
            frozen_batches=size.batches,
        )


def _generated(
    base: BasePolicy,
    model: Module,
    training: PolicyTraining,
    size: BaseModelSize,
    *,
    number: int,
    seed: int,
) -> TokenBatch:
    """Completions of the prompts of batch *number*."""
    engine = TransformersRollout(
        RoleForward(model, next(model.parameters()).device, FP32),
        pad_token=training.pad_token,
        stop_tokens=training.stop_tokens,
    )
    first = number * size.batch_size
    return engine.generate(
        [base.prompts[(first + row) % len(base.prompts)] for row in range(size.batch_size)],
        sampling=Sampling(temperature=training.temperature),
        max_new_tokens=size.max_new_tokens,
        seed=seed * 1000 + number,
    )


def _synthetic_rewards(batch: TokenBatch) -> Tensor:
    """Share of different tokens in each completion, [B] float32."""
    shares = [len(set(tokens)) / len(tokens) for tokens in batch.responses()]
    return torch.tensor(shares, device=batch.tokens_BT.device)


def _learn(model: Module, batches: Sequence[TokenBatch], size: BaseModelSize) -> None:
    """Take ``updates`` steps by REINFORCE on the batches in turn."""
    device = next(model.parameters()).device
    forward = PrecisionForward(model, device, Precision.FP32)
    optimizer = torch.optim.Adam(model.parameters(), lr=size.learning_rate)
    for step in range(size.updates):
        batch = batches[step % len(batches)]
        mask_BS = batch.response_mask_BS
        rewards_B = _synthetic_rewards(batch)
        advantages_BS = whitened(rewards_B[:, None].expand(mask_BS.shape), mask_BS)
        log_probs_BS = token_log_probs(forward, batch, Sampling())
        (-masked_mean(advantages_BS * log_probs_BS, mask_BS)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
