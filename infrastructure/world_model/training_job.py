"""A world model's training as a `TrainingJob`: what `FP16Trainer` runs."""

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
from infrastructure.world_model.batches import BatchStream
from infrastructure.world_model.best_epoch import BestEpoch
from infrastructure.world_model.heads import ensemble_loss
from infrastructure.world_model.outlook import Outlook, outlook_of
from infrastructure.world_model.scoring import PRIMARY, decision_loss, measure
from infrastructure.world_model.training_data import DataPart, TrainingData


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """How long and how hard to train.

    Attributes:
        epochs: Each ends with an evaluation.
        steps_per_epoch: Optimizer steps in one.
        batch_size: Rows per step.
        learning_rate: At the start; falls along a cosine to a hundredth.
        weight_decay: Of AdamW.
        seed: Of the shuffles.
        device: Where evaluation inputs go: the device the job trains on.
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
    """Train *network* on the training groups; each epoch is evaluated on held-out groups.

    The metrics are of the test groups and only report. Which epoch is kept in *best* the
    calibration groups decide.

    Args:
        data: See `TrainingData`.
        network: Takes ``Features.inputs`` and returns raw head outputs; see `network.py`.
        plan: See `TrainingPlan`.
        best: Keeps the weights of the best epoch.
        loss: Forward and batch to a float32 scalar.
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
    held_out = _outlook(data, data.calibration, device, forward)
    best.consider(decision_loss(held_out, data.calibration, data.codec), network)
    outlook = _outlook(data, data.test, device, forward)
    metrics = measure(outlook, data.test.outcomes, data.codec)
    return Evaluation(metrics=metrics, primary=PRIMARY, higher_is_better=True)


@torch.no_grad()
def _outlook(data: TrainingData, part: DataPart, device: str, forward: Forward) -> Outlook:
    """What the network alone expects, before calibration."""
    inputs = {name: tensor.to(device) for name, tensor in part.features.inputs().items()}
    return outlook_of(forward(inputs), data.codec, len(part.features))


def _optimizer(plan: TrainingPlan, parameters: Iterable[Parameter]) -> Optimizer:
    return AdamW(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=True)


def _scheduler(steps: int, optimizer: Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, partial(_cosine, steps))


def _cosine(steps: int, step: int) -> float:
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(step / steps, 1.0)))
