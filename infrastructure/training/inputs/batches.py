"""A job's batches on the device they are computed on."""

from __future__ import annotations

import torch

from infrastructure.agent_contract.training_job import Batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """*batch* with every tensor on *device*."""
    moved = dict(batch)
    for name, tensor in batch.items():
        if tensor.device != device:
            moved[name] = tensor.to(device, non_blocking=True)
    return moved
