"""A copy of a job's model and a few of its batches, to try things on; the job stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract import TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.training.inputs.generators import random_state, restore_random_state
from infrastructure.training.precision.forward import PrecisionForward, checked_loss
from infrastructure.training.precision.precision import Precision


class Workbench:
    """What the measurements share.

    Args:
        job: Its model is copied, its first batches are drawn.
        device: Where to compute.
        batches: How many micro-batches to look at, at most.

    Attributes:
        job: As given.
        device: As given.
        batches: On the device.

    Raises:
        ValueError: The job yields no batches.
    """

    def __init__(self, job: TrainingJob, device: torch.device, batches: int) -> None:
        self.job, self.device = job, device
        drawn = iter(job.batches(0))
        taken = list(islice(drawn, batches))
        if hasattr(drawn, "close"):
            drawn.close()
        if not taken:
            raise ValueError("the training job yields no batches for epoch 0: nothing to measure")
        self.batches: list[Batch] = [
            {name: tensor.to(device) for name, tensor in batch.items()} for batch in taken
        ]

    def model(self) -> Module:
        """A new copy of the job's model, in training mode, without gradients."""
        model = copy.deepcopy(self.job.model).to(self.device).train()
        model.zero_grad(set_to_none=True)
        return model

    def loss(self, model: Module, batch: Batch, precision: Precision) -> Tensor:
        """The job's loss of *batch* with *model* under *precision*: float32 ``[]``."""
        forward = PrecisionForward(model, self.device, precision)
        return checked_loss(forward.compute_loss(self.job.loss, batch))


@contextmanager
def undisturbed_generators(device: torch.device) -> Iterator[None]:
    """Put the random generators of Python, NumPy, torch and *device* back at the end."""
    before, numpy_before = random_state(device), np.random.get_state()
    try:
        yield
    finally:
        restore_random_state(before, device)
        np.random.set_state(numpy_before)
