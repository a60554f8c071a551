"""A job's batches on the device they are computed on."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice

import torch

from infrastructure.agent_contract import TrainingJob
from infrastructure.agent_contract.training_job import Batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """*batch* with every tensor on *device*."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def first_batches(job: TrainingJob, device: torch.device, count: int = 1) -> list[Batch]:
    """The first *count* batches of epoch 0, or fewer where it is shorter, on *device*.

    Raises:
        ValueError: The job yields no batches.
    """
    batches = iter(job.batches(0))
    taken = [to_device(batch, device) for batch in islice(batches, count)]
    if isinstance(batches, Generator):
        batches.close()
    if not taken:
        raise ValueError("the training job yields no batches for epoch 0")
    return taken
