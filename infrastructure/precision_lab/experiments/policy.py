"""A PPO batch of a language-model policy: rewards, KL, values, advantages, loss, gradients.

The old log-probabilities were captured once, before the policy got its present weights, and the
reference has other weights than both: neither the ratio nor the KL is trivial.

Legend: B sequences, T tokens, S = T - 1 predicted tokens, H features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.policy.losses.advantages import gae
from infrastructure.policy.masked import masked
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.policy.tokens import TokenBatch
from infrastructure.precision_lab import computations
from infrastructure.precision_lab.experiment import ExperimentResult, Region
from infrastructure.precision_lab.experiments.gradients import MeanGradients
from infrastructure.precision_lab.kernels import Kernels, ModelForward, RegionKernels
from infrastructure.precision_lab.metrics.kl import kl_penalty

OLD_LOG_PROBS, RETURNS = "old_log_probs_BS", "returns_BS"
"""Names, in a batch, of what was captured once in FP32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyTraining:
    """How completions were drawn and what is trained.

    Attributes:
        temperature: Divisor of the logits; nothing was cut off.
        pad_token: Id at padding.
        stop_tokens: Ids that end a completion.
        kl_coefficient: Factor of the KL penalty in the reward of a token.
        value_coefficient: Factor of the value loss.
        clip: Range of the ratio, on both sides of 1.
    """

    temperature: float
    pad_token: int
    stop_tokens: Sequence[int]
    kl_coefficient: float = 0.05
    value_coefficient: float = 0.5
    clip: float = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyExperiment:
    """Repeats a PPO batch; see `Experiment`.

    Attributes:
        models: Models of policy, reference, rollout (the old policy), reward and value.
        batches: The tensors of a `TokenBatch`, `OLD_LOG_PROBS` and `RETURNS`.
        training: How they were made.
        keep_fp32: Modules of the policy that the training keeps in FP32.
        loss_scale: Factor of the loss in the backward pass; needed where it computes in FP16.
    """

    models: Mapping[Role, Module]
    batches: Sequence[Batch]
    training: PolicyTraining
    keep_fp32: Sequence[str] = ()
    loss_scale: float = 1.0

    def run(self, region: Region) -> ExperimentResult:
        """See `Experiment.run`."""
        return self.run_with(RegionKernels(self.models, region))

    def run_with(self, kernels: Kernels) -> ExperimentResult:
        """Compute everything once with *kernels*."""
        frozen = self._frozen_roles(kernels)
        policy, value = kernels.model(Role.POLICY), kernels.model(Role.VALUE)
        gradients = MeanGradients(
            {Role.POLICY: policy.module, Role.VALUE: value.module},
            len(self.batches),
            self.loss_scale,
        )
        by_batch = []
        with torch.enable_grad():
            for tensors, of_frozen in zip(self.batches, frozen, strict=True):
                quantities, loss = self._step(kernels, policy, value, tensors, of_frozen)
                gradients.add(loss)
                by_batch.append(of_frozen | quantities)
        masks = [TokenBatch.from_tensors(batch).response_mask_BS.cpu() for batch in self.batches]
        return ExperimentResult(
            quantities={**_joined(by_batch), **gradients.quantities()},
            mask_BS=computations.stacked(masks),
        )

    @torch.no_grad()
    def _frozen_roles(self, kernels: Kernels) -> list[dict[str, Tensor]]:
        """What reference, reward and rollout return for each batch; one copy exists at a time."""
        by_batch: list[dict[str, Tensor]] = [{} for _ in self.batches]
        tokens = [TokenBatch.from_tensors(batch) for batch in self.batches]
        for role, name, function in (
            (Role.REFERENCE, "reference_log_probs", self._reference_log_probs),
            (Role.REWARD, "rewards", _rewards),
            (Role.ROLLOUT, "rollout_log_probs", self._rollout_log_probs),
        ):
            model = kernels.model(role)
            for quantities, batch in zip(by_batch, tokens, strict=True):
                quantities[name] = function(kernels, model, batch)
        return by_batch

    def _reference_log_probs(
        self, kernels: Kernels, model: ModelForward, batch: TokenBatch
    ) -> Tensor:
        logits_BTV = model(**batch.model_inputs(), use_cache=False).logits
        temperature = self.training.temperature
        return kernels.compute(
            Role.REFERENCE, computations.log_probs_of, logits_BTV, batch, temperature
        )

    def _rollout_log_probs(
        self, kernels: Kernels, model: ModelForward, batch: TokenBatch
    ) -> Tensor:
        """Log-probabilities as the rollout computes them, token by token; NaN where it fails."""
        del kernels
        engine = TransformersRollout(
            model, pad_token=self.training.pad_token, stop_tokens=self.training.stop_tokens
        )
        mask_BS = batch.response_mask_BS
        log_probs_BS = torch.zeros(mask_BS.shape, device=mask_BS.device)
        for column, logits_BV in engine.decode(batch):
            taken_B1 = batch.predicted_tokens_BS[:, column, None]
            of_all_BV = (logits_BV / self.training.temperature).log_softmax(-1)
            log_prob_B = of_all_BV.gather(-1, taken_B1)[:, 0]
            log_probs_BS[:, column] = torch.where(mask_BS[:, column], log_prob_B, 0.0)
        return log_probs_BS

    def _step(
        self,
        kernels: Kernels,
        policy: ModelForward,
        value: ModelForward,
        tensors: Batch,
        frozen: Mapping[str, Tensor],
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Quantities and loss of one batch."""
        training, batch = self.training, TokenBatch.from_tensors(tensors)
        mask_BS = batch.response_mask_BS
        output = policy(**batch.model_inputs(), use_cache=False, output_hidden_states=True)
        log_probs_BS = kernels.compute(
            Role.POLICY, computations.log_probs_of, output.logits, batch, training.temperature
        )
        values_BS = masked(value(output.hidden_states[-1].detach()), mask_BS)
        log_ratio_BS, kl_BS = kernels.compute(
            Role.KL, _kl, log_probs_BS.detach(), frozen["reference_log_probs"], mask_BS
        )
        advantages_BS = kernels.compute(
            Role.ADVANTAGE,
            _advantages,
            *(frozen["rewards"], kl_BS, values_BS.detach(), mask_BS, training.kl_coefficient),
        )
        ratio_BS, loss = kernels.compute(
            Role.POLICY,
            _policy_loss,
            *(log_probs_BS, tensors[OLD_LOG_PROBS], advantages_BS, mask_BS, training.clip),
        )
        of_values = kernels.compute(
            Role.VALUE, computations.squared_error, values_BS, tensors[RETURNS], mask_BS
        )
        quantities = {
            "log_probs": log_probs_BS,
            "old_log_probs": tensors[OLD_LOG_PROBS],
            "values": values_BS,
            "log_ratio": log_ratio_BS,
            "kl": kl_BS,
            "advantages": advantages_BS,
            "ratio": ratio_BS,
        }
        total = loss + training.value_coefficient * of_values
        return {**quantities, "loss": total[None]}, total


def _rewards(kernels: Kernels, model: ModelForward, batch: TokenBatch) -> Tensor:
    del kernels
    rewards_B: Tensor = model(**batch.model_inputs())
    return rewards_B


def _kl(log_probs_BS: Tensor, reference_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, Tensor]:
    log_ratio_BS = masked(log_probs_BS - reference_BS, mask_BS)
    return log_ratio_BS, masked(kl_penalty(log_ratio_BS), mask_BS)


def _advantages(
    rewards_B: Tensor, kl_BS: Tensor, values_BS: Tensor, mask_BS: Tensor, kl_coefficient: float
) -> Tensor:
    rewards_BS = computations.shaped_rewards(rewards_B, kl_BS, mask_BS, kl_coefficient)
    advantages_BS, _ = gae(rewards_BS, values_BS, mask_BS)
    return computations.whitened(advantages_BS, mask_BS)


def _policy_loss(
    log_probs_BS: Tensor, old_BS: Tensor, advantages_BS: Tensor, mask_BS: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    ratio_BS = computations.ratio_of(log_probs_BS, old_BS, mask_BS)
    loss = computations.clipped_surrogate(ratio_BS, advantages_BS, mask_BS, clip=clip)
    return ratio_BS, loss


def _joined(by_batch: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: computations.stacked(
            [quantities[name].detach().float().cpu() for quantities in by_batch]
        )
        for name in by_batch[0]
    }
