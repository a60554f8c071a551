"""A job's batches on the device they are computed on."""

from __future__ import annotations

import torch

from infrastructure.agent_contract.training_job import Batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """*batch* with every tensor on *device*."""
    return {
        name: tensor if tensor.device == device else tensor.to(device, non_blocking=True)
        for name, tensor in batch.items()
    }
