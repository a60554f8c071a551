"""The `TrainingJob` that trains a world model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from infrastructure.agent_contract import Evaluation, Forward, TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.world_model.distributions import TargetDistributions, predictive_distributions
from infrastructure.world_model.fitting.batches import BatchStream
from infrastructure.world_model.fitting.scoring import PRIMARY, measure, selection_loss
from infrastructure.world_model.fitting.training_data import DataPart, TrainingData
from infrastructure.world_model.networks import BestEpoch, ensemble_loss


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """Length and hyperparameters of one training.

    Attributes:
        epochs: Number of epochs; each ends with an evaluation.
        steps_per_epoch: Optimizer steps per epoch.
        batch_size: Rows per step.
        learning_rate: Initial learning rate; decays along a cosine to a hundredth of it.
        weight_decay: Weight decay of AdamW.
        seed: Seed that shuffles the rows.
        device: Device that the job trains on; evaluation inputs are moved there.
    """

    epochs: int
    steps_per_epoch: int
    batch_size: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    seed: int = 0
    device: str = "cpu"


def training_job(
    data: TrainingData,
    network: Module,
    plan: TrainingPlan,
    best: BestEpoch,
    loss: Callable[[Forward, Batch], Tensor] = ensemble_loss,
) -> TrainingJob:
    """Build the job that trains *network* on the training groups of *data*.

    Each epoch ends with an evaluation on two other sets of groups: the calibration groups decide
    which epoch's weights *best* keeps, and the test groups give the reported metrics.

    Args:
        network: Network that maps ``Features.inputs`` to the raw outputs of its heads.
        best: Store of the weights of the best epoch.
        loss: Function of forward and batch that returns a float32 scalar.
    """
    batch_size = min(plan.batch_size, len(data.train.features))
    stream = BatchStream(
        part=data.train,
        batch_size=batch_size,
        steps_per_epoch=plan.steps_per_epoch,
        seed=plan.seed,
    )
    return TrainingJob(
        model=network,
        optimizer=partial(_optimizer, plan),
        batches=stream.epoch,
        loss=loss,
        evaluate=partial(_evaluate, data, network, plan.device, best),
        epochs=plan.epochs,
        scheduler=partial(_scheduler, plan.epochs * plan.steps_per_epoch),
    )


def _evaluate(
    data: TrainingData, network: Module, device: str, best: BestEpoch, forward: Forward
) -> Evaluation:
    held_out = _predict(data, data.calibration, device, forward)
    best.save_if_better(selection_loss(held_out, data.calibration, data.codec), network)
    predicted = _predict(data, data.test, device, forward)
    metrics = measure(predicted, data.test.outcomes, data.codec)
    return Evaluation(metrics=metrics, primary=PRIMARY, higher_is_better=True)


@torch.no_grad()
def _predict(
    data: TrainingData, part: DataPart, device: str, forward: Forward
) -> TargetDistributions:
    """Predict with the network alone, without calibrating its uncertainty."""
    inputs = {name: tensor.to(device) for name, tensor in part.features.inputs().items()}
    return predictive_distributions(forward(inputs), data.codec, len(part.features))


def _optimizer(plan: TrainingPlan, parameters: Iterable[Parameter]) -> Optimizer:
    return AdamW(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=True)


def _scheduler(steps: int, optimizer: Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, partial(_cosine, steps))


def _cosine(steps: int, step: int) -> float:
    """Return the learning rate at *step* as a share of the initial one."""
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(step / steps, 1.0)))
