"""One agent of the pair: a small language model, its trainer, and the copy that it acts with.

Legend: B sequences, S predicted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from agents.waltzrl.game.demonstrations import Demonstration
from agents.waltzrl.game.words import CONTEXT, WordTokenizer
from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.events.role_precision import FP32, RolePrecision
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.losses import Clip, LossInputs, ppo_loss
from infrastructure.policy.losses.advantages import reinforce_plus_plus_advantages
from infrastructure.policy.masked import masked_mean
from infrastructure.policy.models import build_policy, small_config
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.precision.roles import RoleForward

_CPU = torch.device("cpu")
_SAMPLING = Sampling()  # also of the evaluations: the policy itself, not its mode


class Sample(NamedTuple):
    """A completion of the game that an agent learns from.

    Attributes:
        context: Tokens that the agent read.
        completion: Tokens that it wrote.
        reward: Its reward.
    """

    context: list[int]
    completion: list[int]
    reward: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRule:
    """How an agent learns from reward.

    Attributes:
        learning_rate: Learning rate of the first step on demonstrations; it falls linearly to 0.
        reward_learning_rate: Constant learning rate of the steps on rewards.
        steps_per_round: Optimizer steps that share the samples of a round.
        kl_coefficient: Weight of the divergence from the untrained agent, as in Genesis' trainer.
        clip: Range of the ratio, PPO's.
    """

    learning_rate: float = 4e-3
    reward_learning_rate: float = 1e-3
    steps_per_round: int = 2
    kl_coefficient: float = 0.01
    clip: float = 0.2


class Actor:
    """An agent with random weights, on the CPU, in FP32.

    Args:
        seed: Seed of the weights and of what is drawn.
        rule: How it learns.

    Attributes:
        trainer: The trainer, with the model.
    """

    def __init__(self, seed: int, rule: LearningRule) -> None:
        self._tokenizer, self._rule = WordTokenizer(), rule
        config = small_config(self._tokenizer, width=32, layers=2, heads=2, context=CONTEXT)
        config.initializer_range = 0.05  # the default of 0.02 is for far wider models
        model = build_policy(config, seed=seed)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )
        state = PrecisionState(requested="fp32", effective="fp32", reason="operator")
        self.trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True), wish=state)
        self._rollout = RoleForward(model, _CPU, FP32)
        self._reference = RoleForward(model, _CPU, FP32)

    def imitate(self, demonstrations: Sequence[Sequence[Demonstration]]) -> None:
        """Learn one batch of demonstrations per step; what results is the untrained agent."""
        for step, batch in enumerate(demonstrations):
            self._set_learning_rate(self._rule.learning_rate * (1 - step / len(demonstrations)))
            contexts, completions = zip(*batch, strict=True)
            self.trainer.train_batch(self._tokens(contexts, completions).to_tensors(), _imitation)
        self._reference.update(self.trainer.model)
        self._rollout.update(self.trainer.model)

    def set_precision(self, precision: PrecisionName) -> None:
        """Train, write and compute the reference in *precision*; a half type is slow on a CPU."""
        self.trainer.set_precision(
            PrecisionState(requested=precision, effective=precision, reason="operator")
        )
        types = RolePrecision(precision, precision, "fp32")
        self._rollout.set_precision(types)
        self._reference.set_precision(types)

    def write(
        self, contexts: Sequence[list[int]], *, limit: int, seed: int, evaluating: bool = False
    ) -> list[list[int]]:
        """Complete each of the *contexts*, in the precision of the rollout.

        Args:
            limit: Most tokens of a completion.
            seed: Seed of the draws.
            evaluating: Compute in FP32 instead.
        """
        forward = self._rollout
        if evaluating:
            forward = RoleForward(self.trainer.model, _CPU, FP32)
        engine = TransformersRollout(
            forward,
            pad_token=self._tokenizer.pad_token_id,
            stop_tokens=[self._tokenizer.eos_token_id],
        )
        written = engine.generate(contexts, sampling=_SAMPLING, max_new_tokens=limit, seed=seed)
        return written.responses()

    def reinforce(self, samples: Sequence[Sample], *, seed: int) -> None:
        """Learn from the rewards of one round by REINFORCE++, and act with the new weights.

        Args:
            seed: Decides which samples share a step.
        """
        self._set_learning_rate(self._rule.reward_learning_rate)
        contexts, completions, rewards = zip(*samples, strict=True)
        tensors = self._prepared(self._tokens(contexts, completions), torch.tensor(rewards))
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
        for rows in order.tensor_split(self._rule.steps_per_round):
            self.trainer.train_batch(
                {name: tensor[rows] for name, tensor in tensors.items()}, self._surrogate
            )
        self._rollout.update(self.trainer.model)

    @torch.no_grad()
    def _prepared(self, batch: TokenBatch, rewards_B: Tensor) -> Batch:
        old_BS = token_log_probs(self.trainer.forward, batch, _SAMPLING)
        advantages_BS = reinforce_plus_plus_advantages(
            rewards_B.float(),
            old_BS,
            token_log_probs(self._reference, batch, _SAMPLING),
            batch.response_mask_BS,
            kl_coefficient=self._rule.kl_coefficient,
        )
        return {
            **batch.to_tensors(),
            "old_log_probs_BS": old_BS,
            "advantages_BS": advantages_BS,
        }

    def _surrogate(self, forward: Forward, tensors: Batch) -> Tensor:
        batch = TokenBatch.from_tensors(tensors)
        inputs = LossInputs(
            log_probs_BS=token_log_probs(forward, batch, _SAMPLING),
            old_log_probs_BS=tensors["old_log_probs_BS"],
            advantages=tensors["advantages_BS"],
            mask_BS=batch.response_mask_BS,
        )
        return ppo_loss(inputs, Clip(low=self._rule.clip, high=self._rule.clip)).loss

    def _tokens(
        self, contexts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> TokenBatch:
        return TokenBatch.from_sequences(
            contexts, completions, pad_token=self._tokenizer.pad_token_id
        )

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.trainer.optimizer.param_groups:
            group["lr"] = rate


def _imitation(forward: Forward, tensors: Batch) -> Tensor:
    batch = TokenBatch.from_tensors(tensors)
    return -masked_mean(token_log_probs(forward, batch, _SAMPLING), batch.response_mask_BS)
