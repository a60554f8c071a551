"""The loss of a world model's job, and its gradients, on frozen batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.precision_lab.experiment import ExperimentResult, Region
from infrastructure.precision_lab.experiments.gradients import MeanGradients
from infrastructure.precision_lab.kernels import Kernels, RegionKernels


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldModelExperiment:
    """Repeats the loss of a job on frozen batches; see `Experiment`.

    Attributes:
        models: The world model alone.
        batches: Batches of the job.
        loss: Loss of the job.
        keep_fp32: Modules that the job keeps in FP32.
        loss_scale: Factor of the loss in the backward pass; needed where it computes in FP16.
    """

    models: Mapping[Role, Module]
    batches: Sequence[Batch]
    loss: Callable[[Forward, Batch], Tensor]
    keep_fp32: Sequence[str] = ()
    loss_scale: float = 1.0

    def run(self, region: Region) -> ExperimentResult:
        """See `Experiment.run`."""
        return self.run_with(RegionKernels(self.models, region))

    def run_with(self, kernels: Kernels) -> ExperimentResult:
        """Compute everything once with *kernels*."""
        model = kernels.model(Role.WORLD_MODEL)
        gradients = MeanGradients(
            {Role.WORLD_MODEL: model.module}, len(self.batches), self.loss_scale
        )
        losses = []
        with torch.enable_grad():
            for batch in self.batches:
                loss = kernels.compute(Role.WORLD_MODEL, self.loss, model, batch)
                gradients.add(loss, partial(kernels.compute, Role.WORLD_MODEL))
                losses.append(loss.detach().float().cpu())
        return ExperimentResult(quantities={"loss": torch.stack(losses), **gradients.quantities()})
