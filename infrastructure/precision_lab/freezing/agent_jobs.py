"""Experiments from the jobs of agents: trained a little in FP32, then frozen."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract import TrainingJob
from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles
from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionState, Role
from infrastructure.events.role_precision import FP32
from infrastructure.policy import TokenBatch, TokenBatchError
from infrastructure.policy.adapters import merged
from infrastructure.policy.models import build_policy
from infrastructure.precision_lab import computations
from infrastructure.precision_lab.environment import fixed_numerics
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.experiments import (
    PolicyExperiment,
    PolicyTraining,
    WorldModelExperiment,
)
from infrastructure.precision_lab.freezing.assembly import PolicyWeights, assembled_experiment
from infrastructure.precision_lab.progress import unreported
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.inputs import to_device
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.roles import RoleForward
from infrastructure.training.rounds import kind_of
from infrastructure.training.rounds.generation import generate

REWARDS = "rewards_B"
"""Name, in a batch of an `OnPolicyJob`, of the reward of each completion."""

_TOLERANCE = 1e-3  # nats, between the recorded log-probabilities and those of temperature 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FreezeSize:
    """How much is frozen.

    Attributes:
        batches: Number of batches.
        batch_size: Sequences in a batch of a policy; a world model's job decides its own.
        steps: Optimizer steps of a world model before its weights are frozen.
        rounds: Rounds of a policy after its warm-up.
    """

    batches: int = 4
    batch_size: int = 8
    steps: int = 100
    rounds: int = 5


def world_model_experiment(
    job: TrainingJob, device: torch.device, size: FreezeSize, progress: ReportProgress = unreported
) -> WorldModelExperiment:
    """Train *job* for some steps in FP32 and take its next batches.

    *progress* is told of each step.

    Raises:
        LabError: The job yields no batches.
    """
    trainer = _trainer(job, device)
    batches: list[Batch] = []
    with fixed_numerics():
        for number, batch in enumerate(_endless(job)):
            if number >= size.steps + size.batches:
                break
            if number < size.steps:
                progress(number, size.steps, unit="steps in FP32")
                trainer.train_batch(to_device(batch, device), job.loss)
            else:
                batches.append(to_device(batch, device))
    trainer.finish_window()
    job.model.zero_grad(set_to_none=True)
    return WorldModelExperiment(
        models={Role.WORLD_MODEL: job.model.eval()},
        batches=batches,
        loss=job.loss,
        keep_fp32=job.kept_modules,
    )


def policy_job_experiment(
    job: OnPolicyJob,
    device: torch.device,
    size: FreezeSize,
    *,
    seed: int,
    progress: ReportProgress = unreported,
) -> PolicyExperiment:
    """Train *job* in FP32 through its warm-up and some rounds, and take the last one.

    The reference has the weights after the warm-up, the rollout those that generated the last
    round, the policy those after the steps on it. *progress* is told of each round.

    Raises:
        LabError: The job's batches hold no tokens, no `REWARDS`, or were not drawn at temperature
            1; or its model is not a language model that transformers can rebuild.
    """
    trainer = _trainer(job, device)
    last = job.warm_up_rounds + size.rounds
    reference = None
    with fixed_numerics():
        for number in range(last + 1):
            progress(number, last + 1, unit="rounds in FP32")
            if number == job.warm_up_rounds:
                reference = copy.deepcopy(job.model)
            old = job.model if number < last else copy.deepcopy(job.model)
            roles = _roles(job, old, reference or job.model, device)
            old.eval()
            batches = [to_device(batch, device) for batch in generate(job, number, roles)]
            job.model.train()
            for batch in batches:
                trainer.train_batch(batch, job.loss)
            trainer.finish_window()
        tokens, rewards = _completions(batches)
        plain = [_plain(model, device) for model in (reference or old, old, job.model)]
        weights = PolicyWeights(reference=plain[0], old=plain[1], policy=plain[2])
        training = _training(weights.old, tokens)
        chunks = _chunks(tokens, rewards, size)
        return assembled_experiment(
            weights,
            [chunk for chunk, _ in chunks],
            [chunk_rewards for _, chunk_rewards in chunks],
            training,
            seed=seed,
            frozen_batches=size.batches,
        )


def _trainer(job: TrainingJob | OnPolicyJob, device: torch.device) -> FP16Trainer:
    if kind_of(job).parts:
        raise LabError("the agent's job has parts: the lab repeats jobs of one optimizer and loss")
    job.model.to(device).train()
    config = FP16TrainingConfig(accumulate=job.accumulate, keep_fp32=tuple(job.keep_fp32))
    return FP16Trainer(
        job.model,
        job.optimizer(job.model.parameters()),
        config,
        wish=PrecisionState(requested="fp32", effective="fp32", reason="operator"),
    )


def _endless(job: TrainingJob) -> Iterator[Batch]:
    epoch = 0
    while True:
        count = 0
        for batch in job.batches(epoch):
            count += 1
            yield batch
        if not count:
            raise LabError(f"the agent's job yields no batches for epoch {epoch}")
        epoch += 1


def _roles(job: OnPolicyJob, old: Module, reference: Module, device: torch.device) -> Roles:
    return Roles(
        rollout=RoleForward(old, device, FP32),
        policy=PrecisionForward(old, device, Precision.FP32),
        reference=RoleForward(reference, device, FP32) if job.reference else None,
        device=str(device),
        batches_per_step=job.accumulate,
        check=True,
    )


def _completions(batches: list[Batch]) -> tuple[TokenBatch, Tensor]:
    """All completions of a round and their rewards.

    Raises:
        LabError: The batches lack something.
    """
    try:
        parts = [TokenBatch.from_tensors(batch).check() for batch in batches]
    except TokenBatchError as error:
        raise LabError(
            f"the job's batches hold no sequences of tokens ({error}): the lab freezes policies "
            "whose batches are made with TokenBatch.to_tensors()"
        ) from error
    if not all(REWARDS in batch for batch in batches) or not parts:
        raise LabError(
            f"the job's batches hold no {REWARDS}: add the reward of each completion, [B] float32, "
            "under that name"
        )
    if any(part.log_probs_BS is None for part in parts):
        raise LabError(
            "log_probs_BS of a TokenBatch in the job's batches is None: keep the log-probabilities "
            "that the rollout returned at temperature 1 when you make the batches"
        )
    joined = {
        name: torch.cat([part.to_tensors()[name] for part in parts])
        for name in parts[0].to_tensors()
    }
    return TokenBatch.from_tensors(joined), torch.cat([batch[REWARDS] for batch in batches])


def _chunks(
    tokens: TokenBatch, rewards_N: Tensor, size: FreezeSize
) -> list[tuple[TokenBatch, Tensor]]:
    """Batches of *size*; the sequences beyond them help to fit values and rewards."""
    needed = size.batches * size.batch_size
    if len(tokens) < needed:
        raise LabError(
            f"a round has {len(tokens)} completions, but {size.batches} batches of "
            f"{size.batch_size} need {needed}: freeze fewer"
        )
    chunk = size.batch_size
    return [
        (tokens.rows(slice(first, first + chunk)), rewards_N[first : first + chunk])
        for first in range(0, len(tokens), chunk)
    ]


def _plain(model: Module, device: torch.device) -> Module:
    """The language model alone, its adapter merged, without the networks that a loss trains."""
    config = getattr(model, "config", None)
    if config is None:
        raise LabError(
            f"{type(model).__name__} is not a model of transformers, so that its configuration "
            "cannot be frozen"
        )
    plain = build_policy(config, seed=0)
    state, expected = merged(model).state_dict(), plain.state_dict()
    if not expected.keys() <= state.keys():
        missing = sorted(expected.keys() - state.keys())
        raise LabError(f"the model lacks {missing[0]}, which its configuration has")
    plain.load_state_dict({name: state[name] for name in expected})
    return plain.to(device)


@torch.no_grad()
def _training(old: Module, tokens: TokenBatch) -> PolicyTraining:
    """How the completions were drawn, if at temperature 1 from all tokens.

    Raises:
        LabError: Their recorded log-probabilities are of another distribution.
    """
    config: Any = old.config
    training = PolicyTraining(
        temperature=1.0,
        pad_token=getattr(config, "pad_token_id", None) or 0,
        stop_tokens=_stop_tokens(config),
    )
    logits_BTV = old(**tokens.model_inputs(), use_cache=False).logits
    recorded_BS = tokens.log_probs_BS
    found_BS = computations.log_probs_of(logits_BTV, tokens, training.temperature)
    error = (found_BS - recorded_BS).abs().max().item()  # type: ignore[operator]
    if not error < _TOLERANCE:
        raise LabError(
            f"the rollout's log-probabilities differ by {error:.2g} from those at temperature 1: "
            "set the agent's temperature to 1, and cut off no tokens"
        )
    return training


def _stop_tokens(config: object) -> tuple[int, ...]:
    configured = getattr(config, "eos_token_id", None)
    stop_tokens = tuple(configured if isinstance(configured, list) else [configured])
    if None in stop_tokens:
        raise LabError("the model's configuration has no end-of-sequence token: set eos_token_id")
    return stop_tokens
