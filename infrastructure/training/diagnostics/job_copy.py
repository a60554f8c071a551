"""A copy of a job's model and its first batches to measure; the job itself stays as it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Module

from infrastructure.agent_contract import Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.training.model_copy import copy_model
from infrastructure.training.precision import Precision, PrecisionForward, checked_loss
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.rounds import first_batches

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class JobCopy:
    """Fresh copies of a job's model, and the batches to run them on.

    Args:
        job: Job whose model is copied and whose first batches are drawn.
        batches: Number of micro-batches, at most.

    Attributes:
        job, device: As given.
        batches: On the device.

    Raises:
        ValueError: The job yields no batches.
    """

    def __init__(self, job: Job, device: torch.device, batches: int) -> None:
        self.job, self.device = job, device
        self.batches = first_batches(job, device, batches)

    def model(self) -> Module:
        """A new copy of the job's model, in training mode, without gradients.

        Raises:
            UncopyableModelError: See `copy_model`.
        """
        model = copy_model(self.job.model).to(self.device).train()
        model.zero_grad(set_to_none=True)
        keep_in_fp32(model, self.job.kept_modules, self.device)
        return model

    def loss(self, model: Module, batch: Batch, precision: Precision) -> Tensor:
        """The job's loss of *batch* with *model* under *precision*: float32 ``[]``."""
        forward = PrecisionForward(model, self.device, precision)
        return checked_loss(forward.compute_loss(self.job.loss, batch))


def disable_dropout(model: Module) -> None:
    """Let torch's own dropout modules in *model* pass everything through, in training mode too.

    Then passes in two precisions draw the same random numbers.
    """
    for module in model.modules():
        if isinstance(module, _DROPOUT):
            module.eval()
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
