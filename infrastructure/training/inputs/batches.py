"""A job's batches on the device they are computed on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from infrastructure.agent_contract.training_job import Batch


class BatchTypeError(TypeError):
    """A batch of a job is not a mapping of names to tensors.

    Args:
        batch: What the job's ``batches`` yielded.
    """

    def __init__(self, batch: object) -> None:
        got = type(batch).__name__
        if isinstance(batch, Mapping):
            others = ((n, v) for n, v in batch.items() if not isinstance(v, Tensor))
            name, value = next(others, ("values", batch))
            got = f"one whose {name!r} is a {type(value).__name__}"
        super().__init__(
            f"batches() of the job must yield mappings of names to tensors, got {got}: "
            "yield for example {'inputs': x, 'targets': y}, and take them by name in the loss"
        )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """*batch* with every tensor on *device*.

    Raises:
        BatchTypeError: It is not a mapping of names to tensors.
    """
    if not isinstance(batch, Mapping):
        raise BatchTypeError(batch)
    moved = dict(batch)
    for name, tensor in batch.items():
        try:
            elsewhere = tensor.device != device
        except AttributeError as error:
            raise BatchTypeError(batch) from error
        if elsewhere:
            moved[name] = tensor.to(device, non_blocking=True)
    return moved
