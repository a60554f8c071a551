"""A PPO experiment from three sets of weights, completions and their rewards.

Legend: B sequences, S predicted tokens, H features, N completions in all.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.events import Role
from infrastructure.policy import TokenBatch
from infrastructure.policy.losses.advantages import gae
from infrastructure.policy.masked import masked
from infrastructure.precision_lab import computations
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.experiments import PolicyExperiment, PolicyTraining
from infrastructure.precision_lab.experiments.policy import OLD_LOG_PROBS, RETURNS
from infrastructure.precision_lab.heads import RewardModel, ValueHead, same_weights
from infrastructure.precision_lab.metrics.kl import kl_penalty


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyWeights:
    """Three policies of one architecture, float32, on one device.

    Attributes:
        reference: The frozen reference; it differs from the others.
        old: What generated the completions.
        policy: What later updates have made of it.
    """

    reference: Module
    old: Module
    policy: Module


@torch.no_grad()
def assembled_experiment(
    weights: PolicyWeights,
    completions: Sequence[TokenBatch],
    rewards: Sequence[Tensor],
    training: PolicyTraining,
    *,
    seed: int,
    frozen_batches: int,
) -> PolicyExperiment:
    """Fit value head and reward model, and capture in FP32 what a batch of PPO fixes once.

    Args:
        weights: The policies; the experiment keeps them.
        completions: Sequences on the device of the weights.
        rewards: Reward of each sequence, [B] float32, of each batch.
        training: How they were drawn and what is trained.
        seed: Of the value head's random features.
        frozen_batches: The first batches, which the experiment repeats; the others only help to
            fit the two heads.

    Raises:
        LabError: Two of the policies have the same weights.
    """
    for model in (weights.reference, weights.old, weights.policy):
        model.eval()
    _require_moved(weights)
    hidden_size = int(weights.policy.config.get_text_config(decoder=True).hidden_size)  # type: ignore[union-attr, operator]
    device = completions[0].tokens_BT.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        value = ValueHead(hidden_size).to(device)
        reward = RewardModel(copy.deepcopy(weights.reference), hidden_size).to(device)
    reward.fit(
        torch.cat([reward.features(**completion.model_inputs()) for completion in completions]),
        torch.cat(list(rewards)),
    )
    hidden, masks = _hidden_states(weights.old, completions), _masks(completions)
    value.fit(
        torch.cat([states[:, :-1][mask] for states, mask in zip(hidden, masks, strict=True)]),
        torch.cat([r[:, None].expand(m.shape)[m] for r, m in zip(rewards, masks, strict=True)]),
    )
    batches = []
    for batch, hidden_BTH in zip(completions[:frozen_batches], hidden, strict=False):
        old_BS = _log_probs(weights.old, batch, training)
        reference_BS = _log_probs(weights.reference, batch, training)
        mask_BS = batch.response_mask_BS
        kl_BS = masked(kl_penalty(old_BS - reference_BS), mask_BS)
        rewards_BS = computations.shaped_rewards(
            reward(**batch.model_inputs()), kl_BS, mask_BS, training.kl_coefficient
        )
        _, returns_BS = gae(rewards_BS, value(hidden_BTH), mask_BS)
        batches.append({**batch.to_tensors(), OLD_LOG_PROBS: old_BS, RETURNS: returns_BS})
    models = {
        Role.POLICY: weights.policy,
        Role.REFERENCE: weights.reference,
        Role.ROLLOUT: weights.old,
        Role.REWARD: reward,
        Role.VALUE: value,
    }
    return PolicyExperiment(
        models={role: model.eval() for role, model in models.items()},
        batches=batches,
        training=training,
    )


def _require_moved(weights: PolicyWeights) -> None:
    for before, after, consequence in (
        (weights.reference, weights.old, "the KL would be 0"),
        (weights.old, weights.policy, "every ratio would be 1"),
    ):
        if same_weights(before, after):
            raise LabError(
                f"the updates did not change the policy, so that {consequence}: its completions "
                "have equal rewards, or the learning rate is too small. Freeze more or longer "
                "completions, after more rounds, or with another seed or learning rate"
            )


def _hidden_states(model: Module, completions: Sequence[TokenBatch]) -> list[Tensor]:
    return [
        model(
            **completion.model_inputs(), use_cache=False, output_hidden_states=True
        ).hidden_states[-1]
        for completion in completions
    ]


def _masks(completions: Sequence[TokenBatch]) -> list[Tensor]:
    return [completion.response_mask_BS for completion in completions]


def _log_probs(model: Module, batch: TokenBatch, training: PolicyTraining) -> Tensor:
    logits_BTV = model(**batch.model_inputs(), use_cache=False).logits
    return computations.log_probs_of(logits_BTV, batch, training.temperature)
