"""One cell of a sweep: PPO under one preset from one seed's initial weights.

What every cell keeps to, so that presets differ in their types alone: it begins with the same FP32
weights; a round is generated once and serves several updates; old log-probabilities and values are
computed once, before them, by the function that computes the new ones; advantages are detached and
whitened over the whole round in FP32; means over tokens are FP32; policy and value head share one
optimizer and one clip; reference and reward model are frozen, and the reference is not the policy.

Legend: B sequences, T tokens, S = T - 1 predicted tokens, V vocabulary, H features.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from random import Random
from typing import Any

import torch
from torch import Tensor

from infrastructure.events import Role
from infrastructure.events.role_precision import FP32, RolePrecisions
from infrastructure.policy import Sampling, TokenBatch
from infrastructure.policy.losses.advantages import gae, whitened
from infrastructure.policy.mismatch.measures import measure as measure_mismatch
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.precision_lab import metrics
from infrastructure.precision_lab.computations import (
    clipped_surrogate,
    log_probs_of,
    ratio_of,
    shaped_rewards,
    squared_error,
)
from infrastructure.precision_lab.failures import (
    FP16_OVERFLOW_LIMIT,
    Deadline,
    FailureWatch,
    StepFigures,
)
from infrastructure.precision_lab.metrics.kl import kl_penalty
from infrastructure.precision_lab.ppo.initial_weights import CellModels, reward_inputs
from infrastructure.precision_lab.ppo.joint_update import JointUpdate, UpdateOutcome
from infrastructure.precision_lab.ppo.seen_types import SeenTypes, dtype_of, name_of
from infrastructure.precision_lab.ppo.settings import CellSettings
from infrastructure.precision_lab.ppo.task import Problem, problems
from infrastructure.precision_lab.trained_forward import TrainedForward
from infrastructure.training.precision.roles import RoleForward

CELL_ROLES = tuple(role for role in Role if role is not Role.WORLD_MODEL)
_TEMPERATURE = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Evaluation:
    """What the trained roles compute for a batch.

    Attributes:
        log_probs_BS: In the policy's ``out``.
        kl_log_probs_BS: In the ``compute`` of the role ``kl``, from logits that were cast first.
        values_BS: In the value head's ``out``.
    """

    log_probs_BS: Tensor
    kl_log_probs_BS: Tensor
    values_BS: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """A generated round and what its updates need, computed once.

    Attributes:
        batch: Sequences.
        old: Log-probabilities and values before the first update.
        reference_BS: Log-probabilities of the reference, in the ``compute`` of the role ``kl``.
        advantages_BS: Whitened, float32.
        returns_BS: Targets of the value head, in the ``out`` of the role ``advantage``.
        exact_kl_penalty_mean: Of FP32 log-probabilities.
        metrics: Of the whole round, for the line of each of its updates.
    """

    batch: TokenBatch
    old: _Evaluation
    reference_BS: Tensor
    advantages_BS: Tensor
    returns_BS: Tensor
    exact_kl_penalty_mean: float
    metrics: dict[str, Any]


class PPOCell:
    """Trains *models* in place under a preset.

    Args:
        settings: What is trained.
        precisions: Types of every role.
        models: Initial models, float32, not used by another cell.
        seed: Decides problems, completions and the order of minibatches.

    Attributes:
        effective_precision: Types of each role as seen in its tensors; filled by the first round.
        updates: Updates attempted.
        skipped: Those that changed nothing, because a gradient was not finite.
        watch: Failures seen so far.
    """

    def __init__(
        self, settings: CellSettings, precisions: RolePrecisions, models: CellModels, seed: int
    ) -> None:
        self._settings, self._precisions, self._seed = settings, precisions, seed
        self._models, self._device = models, torch.device(settings.device)
        self.effective_precision: dict[str, str] = {}
        self.updates = self.skipped = 0
        self._exact_policy = RoleForward(models.policy, self._device, FP32)  # both only measure
        self._exact_reference = RoleForward(models.reference, self._device, FP32)
        self._frozen = {
            Role.ROLLOUT: RoleForward(models.policy, self._device, precisions[Role.ROLLOUT]),
            Role.REFERENCE: RoleForward(models.reference, self._device, precisions[Role.REFERENCE]),
            Role.REWARD: RoleForward(models.reward, self._device, precisions[Role.REWARD]),
        }
        self._trained = {
            Role.POLICY: TrainedForward(models.policy, self._device, precisions[Role.POLICY]),
            Role.VALUE: TrainedForward(models.value, self._device, precisions[Role.VALUE]),
        }
        self._seen = {
            **{role: SeenTypes(forward.module) for role, forward in self._frozen.items()},
            **{role: SeenTypes(forward.module) for role, forward in self._trained.items()},
        }
        scaled = bool(precisions.scaled_roles & self._trained.keys())
        self._update = JointUpdate(
            [list(forward.module.parameters()) for forward in self._trained.values()],
            learning_rate=settings.learning_rate,
            max_grad_norm=settings.max_grad_norm,
            scaled=scaled,
        )
        self.watch = FailureWatch(overflow_limit=FP16_OVERFLOW_LIMIT if scaled else 0)
        self._value_max = 0.0

    @property
    def has_masters(self) -> bool:
        """Whether every trained weight is float32."""
        return self._update.has_masters

    def steps(self) -> Iterator[dict[str, Any]]:
        """Train; yield the metrics of each update, also of one that ends the training.

        Raises:
            TrainingFailureError: The training cannot go on, or takes too long.
        """
        settings, parts = self._settings, self._settings.minibatches
        deadline = Deadline(settings.timeout_seconds)
        for number in range(settings.updates):
            began = time.monotonic()
            round_ = self._new_round(number)
            generator = torch.Generator().manual_seed(self._key(number))
            order = torch.randperm(settings.completions, generator=generator).to(self._device)
            values_BS = round_.old.values_BS.clone()  # as last computed
            for part in range(settings.epochs * parts):
                if self.updates == settings.updates:
                    return
                step, rows = self.updates, order.tensor_split(parts)[part % parts]
                deadline.check(step)
                measures, figures, new_values_BS = self._step(round_, rows, values_BS, part)
                values_BS[rows] = new_values_BS
                seconds = time.monotonic() - began
                heading = {"step": step, "round": number, "seconds": seconds}
                yield {**heading, **round_.metrics, **measures}
                self.watch.require_healthy(step, figures)
                began = time.monotonic()

    def _key(self, number: int) -> int:
        return Random(f"{self._seed}/{number}").getrandbits(62)

    def _new_round(self, number: int) -> _Round:
        """Generate a round and compute what its updates need, before they change the weights."""
        given = list(islice(problems(Random(self._key(number))), self._settings.completions))
        for copy in (self._frozen[Role.ROLLOUT], self._exact_policy):
            copy.update(self._models.policy)
        batch = self._generate(given, self._key(number))
        mask_BS = batch.response_mask_BS
        scores_B = torch.tensor(self._models.scores(given, batch), device=self._device)
        rewards_B = self._rewards(batch, scores_B)
        with torch.no_grad():
            old = self._evaluate(batch)
        reference_BS = self._kl_log_probs(self._logits(Role.REFERENCE, batch), batch)
        advantages_BS, returns_BS = self._advantages(old, rewards_B, reference_BS, mask_BS)
        if not number:
            self._logits(Role.ROLLOUT, batch)  # its own results pass through the decoder
            self._require_declared_types()
        exact_BS, exact_reference_BS = (
            log_probs_of(model(**batch.model_inputs(), use_cache=False).logits, batch, _TEMPERATURE)
            for model in (self._exact_policy, self._exact_reference)
        )
        return _Round(
            batch=batch,
            old=old,
            reference_BS=reference_BS,
            advantages_BS=whitened(advantages_BS.float(), mask_BS),
            returns_BS=returns_BS,
            exact_kl_penalty_mean=metrics.exact_kl_penalty_mean(
                exact_BS, exact_reference_BS, mask_BS
            ),
            metrics=_round_metrics(batch, old.log_probs_BS, exact_BS, rewards_B, scores_B),
        )

    def _generate(self, given: list[Problem], seed: int) -> TokenBatch:
        engine = TransformersRollout(
            self._frozen[Role.ROLLOUT],
            pad_token=self._models.pad_token,
            stop_tokens=self._models.stop_tokens,
        )
        return engine.generate(
            [self._models.encode(problem) for problem in given],
            sampling=Sampling(temperature=_TEMPERATURE),
            max_new_tokens=self._settings.max_new_tokens,
            seed=seed,
        )

    def _rewards(self, batch: TokenBatch, scores_B: Tensor) -> Tensor:
        """Reward of each sequence, [B], in the ``out`` of the role ``reward``."""
        if not self._settings.task_reward:
            rewards_B: Tensor = self._frozen[Role.REWARD](**reward_inputs(batch))
            self._see(Role.REWARD, rewards_B)
            return rewards_B
        types = self._precisions[Role.REWARD]
        stored_B = scores_B.to(dtype_of(types.store))
        computed_B = stored_B.to(dtype_of(types.compute))
        rewards_B = computed_B.to(dtype_of(types.out))
        self._see_tensors(Role.REWARD, stored_B, computed_B, rewards_B)
        return rewards_B

    def _logits(self, role: Role, batch: TokenBatch) -> Tensor:
        logits_BTV: Tensor = self._frozen[role](**batch.model_inputs(), use_cache=False).logits
        self._see(role, logits_BTV)
        return logits_BTV

    def _evaluate(self, batch: TokenBatch) -> _Evaluation:
        """Log-probabilities and values under the weights at hand."""
        output = self._trained[Role.POLICY](
            **batch.model_inputs(), output_hidden_states=True, use_cache=False
        )
        # The value head learns from the policy's features; its gradients do not change them.
        hidden_BTH = output.hidden_states[-1].detach()
        compute = dtype_of(self._precisions[Role.VALUE].compute)
        values_BS = self._trained[Role.VALUE](hidden_BTH.to(compute))
        self._see(Role.POLICY, output.logits)
        self._see(Role.VALUE, values_BS)
        return _Evaluation(
            log_probs_BS=log_probs_of(output.logits, batch, _TEMPERATURE),
            kl_log_probs_BS=self._kl_log_probs(output.logits.detach(), batch),
            values_BS=values_BS,
        )

    def _kl_log_probs(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Cast the logits before the log-softmax: a later cast does not restore lost digits."""
        types = self._precisions[Role.KL]
        stored_BTV = logits_BTV.to(dtype_of(types.store))
        return log_probs_of(stored_BTV.to(dtype_of(types.compute)), batch, _TEMPERATURE)

    def _advantages(
        self, old: _Evaluation, rewards_B: Tensor, reference_BS: Tensor, mask_BS: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns in the ``out`` of the role ``advantage``."""
        kl, types = self._precisions[Role.KL], self._precisions[Role.ADVANTAGE]
        penalty_BS = kl_penalty(old.kl_log_probs_BS - reference_BS)
        kl_BS = penalty_BS.to(dtype_of(kl.out))
        self._see_tensors(Role.KL, reference_BS.to(dtype_of(kl.store)), penalty_BS, kl_BS)
        stored = [tensor.to(dtype_of(types.store)) for tensor in (rewards_B, kl_BS, old.values_BS)]
        reward_B, penalty_BS, values_BS = (tensor.to(dtype_of(types.compute)) for tensor in stored)
        shaped_BS = shaped_rewards(reward_B, penalty_BS, mask_BS, self._settings.kl_coefficient)
        estimates = gae(shaped_BS, values_BS, mask_BS, gae_lambda=self._settings.gae_lambda)
        advantages_BS, returns_BS = (tensor.to(dtype_of(types.out)) for tensor in estimates)
        self._see_tensors(Role.ADVANTAGE, stored[0], estimates[0], advantages_BS)
        return advantages_BS, returns_BS

    def _step(
        self, round_: _Round, rows: Tensor, values_BS: Tensor, part: int
    ) -> tuple[dict[str, Any], StepFigures, Tensor]:
        """One update; its metrics, what the watch needs, and the values before it."""
        settings, batch = self._settings, round_.batch.rows(rows)
        mask_BS = batch.response_mask_BS
        new = self._evaluate(batch)
        old_BS = round_.old.log_probs_BS[rows]
        policy_loss = clipped_surrogate(
            ratio_of(new.log_probs_BS, old_BS, mask_BS).float(),
            round_.advantages_BS[rows],
            mask_BS,
            clip=settings.clip,
        )
        value_loss = squared_error(new.values_BS.float(), round_.returns_BS[rows], mask_BS)
        loss = policy_loss + settings.value_coefficient * value_loss
        outcome = self._update.step(loss)
        self.updates += 1
        self.skipped += not outcome.applied
        value_type = name_of(new.values_BS.dtype)
        values = metrics.measure_values(
            new.values_BS,
            mask_BS,
            precision=value_type,
            previous_BS=values_BS[rows] if part else None,  # before it, no update came between
            previous_max=self._value_max,
        )
        self._value_max = values.value_max
        kl = metrics.measure_kl(
            new.kl_log_probs_BS,
            round_.reference_BS[rows],
            mask_BS,
            precision=self._precisions[Role.KL].compute,
        )
        clipping = metrics.measure_clipping(
            new.log_probs_BS,
            old_BS,
            mask_BS,
            precision=name_of(new.log_probs_BS.dtype),
            clip=settings.clip,
        )
        exact = None if part else round_.exact_kl_penalty_mean
        figures = StepFigures(
            loss=loss.item(),
            gradient_norm=outcome.gradient_norm,
            value_max=new.values_BS.detach()[mask_BS].abs().max().item(),
            value_headroom=values.value_headroom,
            kl_penalty_mean=kl.kl_penalty_mean,
            exact_kl_penalty_mean=exact,
        )
        measures = {
            "loss": figures.loss,
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            **_of_update(outcome),
            **asdict(kl),
            "exact_kl_penalty_mean": exact,
            **asdict(clipping),
            **asdict(values),
        }
        return measures, figures, new.values_BS.detach()

    def _see(self, role: Role, out: Tensor) -> None:
        self.effective_precision[role] = self._seen[role].describe(out)

    def _see_tensors(self, role: Role, *tensors: Tensor) -> None:
        self.effective_precision[role] = "/".join(name_of(tensor.dtype) for tensor in tensors)

    def _require_declared_types(self) -> None:
        for role in CELL_ROLES:
            declared, seen = str(self._precisions[role]), self.effective_precision.get(role)
            if seen != declared:
                raise RuntimeError(
                    f"role {role} was to compute in {declared} and was seen in {seen}: the figures "
                    "of this cell would not be those of its preset"
                )


def _of_update(outcome: UpdateOutcome) -> dict[str, Any]:
    policy, value = outcome.role_norms
    return {
        "grad_norm": outcome.gradient_norm,
        "policy_grad_norm": policy,
        "value_grad_norm": value,
        "loss_scale": outcome.loss_scale,
        "skipped": not outcome.applied,
        "update_stagnation_rate": outcome.update_stagnation_rate,
    }


def _round_metrics(
    batch: TokenBatch, log_probs_BS: Tensor, exact_BS: Tensor, rewards_B: Tensor, scores_B: Tensor
) -> dict[str, Any]:
    """Metrics of a whole round: rewards, errors of log-probabilities, mismatch with the rollout."""
    mask_BS = batch.response_mask_BS
    error = metrics.measure_error(log_probs_BS, exact_BS, mask_BS)
    if batch.log_probs_BS is None:
        raise RuntimeError("the rollout has recorded no log-probabilities")
    mismatch = measure_mismatch(log_probs_BS, batch.log_probs_BS, mask_BS)
    return {
        "task_reward_mean": scores_B.mean().item(),
        "reward_mean": rewards_B.double().mean().item(),
        "reward_std": rewards_B.double().std().item(),
        **asdict(metrics.measure_reward_resolution(rewards_B)),
        **{f"log_prob_{name}": value for name, value in asdict(error).items()},
        **asdict(metrics.measure_accumulated_error(log_probs_BS, exact_BS, mask_BS)),
        "mismatch_k3": mismatch.k3,
        "mismatch_mean_difference": mismatch.mean_difference,
        "mismatch_effective_sample_size": mismatch.effective_sample_size,
        "completion_tokens_mean": mask_BS.sum(1).double().mean().item(),
    }
