"""The first batches of a job, to check and to measure it with before it trains."""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain, islice

import torch
from torch.nn import Module

from infrastructure.agent_contract import Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.training.inputs import to_device
from infrastructure.training.rounds.kinds import kind_of


def first_batches(job: Job, device: torch.device, count: int = 1) -> list[Batch]:
    """The first *count* batches of epoch 0, or fewer where it is shorter, on *device*.

    An `OnPolicyJob` generates them in FP32 with its untrained model.

    Raises:
        TypeError: The job is of no known kind, or yields something other than tensors.
        ValueError: The job yields no batches.
    """
    batches = iter(kind_of(job).first_epoch(device))
    taken = [to_device(batch, device) for batch in islice(batches, count)]
    if isinstance(batches, Generator):
        batches.close()
    if not taken:
        raise ValueError("the training job yields no batches for epoch 0")
    return taken


def batches_of_each_kind(job: Job, model: Module, device: torch.device) -> list[Batch]:
    """One batch of each part of *job*: of the warm-up, and of the rounds after it.

    Args:
        model: Copy of the job's model on *device*, in training mode, which generates in FP32.

    Raises:
        ValueError: The job yields no batches.
    """
    kind = kind_of(job)
    if not kind.rounds:
        return first_batches(job, device)
    rounds = sorted({0, kind.warm_up_rounds})
    firsts = [kind.generate_untrained(n, model, device)[:1] for n in rounds]
    if not any(firsts):
        raise ValueError(
            f"the training job yields no batches for its rounds 0 and {kind.warm_up_rounds}"
        )
    return [to_device(batch, device) for batch in chain(*firsts)]
