"""The first batches of a job, to check and to measure it with before it trains."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import chain, islice

import torch
from torch.nn import Module

from infrastructure.agent_contract import Job, TrainingJob
from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.role_precision import FP32
from infrastructure.training.inputs import to_device
from infrastructure.training.model_copy import copy_model
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.roles import RoleForward
from infrastructure.training.rounds.generation import generate


def first_batches(job: Job, device: torch.device, count: int = 1) -> list[Batch]:
    """The first *count* batches of epoch 0, or fewer where it is shorter, on *device*.

    An `OnPolicyJob` generates them in FP32 with its untrained model.

    Raises:
        TypeError: The job is of no known kind, or yields something other than tensors.
        ValueError: The job yields no batches.
    """
    batches = iter(_first_epoch(job, device))
    taken = [to_device(batch, device) for batch in islice(batches, count)]
    if isinstance(batches, Generator):
        batches.close()
    if not taken:
        raise ValueError("the training job yields no batches for epoch 0")
    return taken


def batches_of_each_kind(job: Job, model: Module, device: torch.device) -> Iterable[Batch]:
    """One batch of each part of *job*: of the warm-up, and of the rounds after it.

    Args:
        model: Copy of the job's model on *device*, in training mode, which generates in FP32.

    Raises:
        ValueError: The job yields no batches.
    """
    if not isinstance(job, OnPolicyJob):
        return first_batches(job, device)
    roles = untrained_roles(job, model, device)
    firsts = [_generate(job, model, n, roles)[:1] for n in sorted({0, job.warm_up_rounds})]
    if not any(firsts):
        raise ValueError(
            f"the training job yields no batches for its rounds 0 and {job.warm_up_rounds}"
        )
    return [to_device(batch, device) for batch in chain(*firsts)]


def untrained_roles(job: OnPolicyJob, model: Module, device: torch.device) -> Roles:
    """Roles that all compute with the weights of *model* in FP32, as before the first step."""
    return Roles(
        rollout=RoleForward(model, device, FP32),
        policy=PrecisionForward(model, device, Precision.FP32),
        reference=RoleForward(model, device, FP32) if job.reference else None,
        device=str(device),
    )


def _first_epoch(job: Job, device: torch.device) -> Iterable[Batch]:
    if isinstance(job, TrainingJob):
        return job.batches(0)
    if not isinstance(job, OnPolicyJob):
        raise TypeError(f"a job must be a TrainingJob or an OnPolicyJob, got {type(job).__name__}")
    model = copy_model(job.model).to(device)
    roles = untrained_roles(job, model, device)
    rounds = (_generate(job, model, n, roles) for n in range(job.rounds_per_epoch))
    return chain.from_iterable(rounds)


def _generate(job: OnPolicyJob, model: Module, round_: int, roles: Roles) -> list[Batch]:
    training = model.training
    model.eval()
    try:
        return generate(job, round_, roles)
    finally:
        model.train(training)
