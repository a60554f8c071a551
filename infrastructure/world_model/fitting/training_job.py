"""The `TrainingJob` that trains a world model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from infrastructure.agent_contract import Evaluation, Forward, TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions import TargetDistributions, predictive_distributions
from infrastructure.world_model.distributions.predictive import head_outputs
from infrastructure.world_model.fitting.batches import Batches, BatchStream, MappedBatches
from infrastructure.world_model.fitting.rollout_fields import check_continued
from infrastructure.world_model.fitting.scoring import (
    PRIMARY,
    base_rate_scores,
    measure,
    selection_loss,
)
from infrastructure.world_model.fitting.training_data import DataPart, TrainingData
from infrastructure.world_model.networks import ensemble_loss

_BETAS = (0.9, 0.99)  # errors fall by orders of magnitude, and gradients with them
_ROWS_IN_CACHE = 512  # of a pass on a CPU: larger activations cost page faults every time


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """Length and hyperparameters of one training.

    Attributes:
        epochs: Number of epochs, at most; each ends with an evaluation.
        patience: See `Job`.
        recent, recent_weight: See `BatchStream`; rows in memory-mapped files weigh the same.
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
    patience: int | None = None
    recent: int = 0
    recent_weight: int = 1


def training_job(
    data: TrainingData,
    network: Module,
    plan: TrainingPlan,
    loss: Callable[[Forward, Batch], Tensor] = ensemble_loss,
) -> TrainingJob:
    """Build the job that trains *network* on the training groups of *data*.

    Each epoch ends with an evaluation on two other sets of groups: the calibration groups decide
    which epoch's weights are kept, and the test groups give the reported metrics.

    Args:
        network: Network that maps ``Features.inputs`` to the raw outputs of its heads.
        loss: Function of forward and batch that returns a float32 scalar.

    Raises:
        ValueError: The spec asks for the error of rollouts, which no model of it can make.
    """
    if data.spec.rollout_steps:
        check_continued(data.spec, data.encoder.constant)
    batch_size = min(plan.batch_size, data.training_rows)
    stream: Batches = (
        BatchStream(
            part=replace(data.train, features=data.train.features.without_linear()),
            batch_size=batch_size,
            steps_per_epoch=plan.steps_per_epoch,
            seed=plan.seed,
            recent=plan.recent,
            recent_weight=plan.recent_weight,
        )
        if data.mapped is None
        else MappedBatches(
            data.mapped,
            batch_size=batch_size,
            steps_per_epoch=plan.steps_per_epoch,
            seed=plan.seed,
        )
    )
    return TrainingJob(
        model=network,
        optimizer=partial(
            AdamW,
            lr=plan.learning_rate,
            betas=_BETAS,
            weight_decay=plan.weight_decay,
            fused=True,
        ),
        batches=stream.epoch,
        loss=loss,
        evaluate=_EpochEvaluation(data, plan.device),
        epochs=plan.epochs,
        patience=plan.patience,
        keep_best_epoch=True,
        scheduler=partial(_CosineDecay, steps=plan.epochs * plan.steps_per_epoch),
    )


class _EpochEvaluation:
    """Evaluates the network after an epoch, without calibrating its uncertainty."""

    def __init__(self, data: TrainingData, device: str) -> None:
        self._data = data
        self._calibration = _HeldOut(data.calibration, data.codec, device)
        self._test = _HeldOut(data.test, data.codec, device)
        self._base = base_rate_scores(data.test.outcomes, data.codec)

    def __call__(self, forward: Forward) -> Evaluation:
        data = self._data
        loss = selection_loss(self._calibration.predict(forward), data.calibration, data.codec)
        predicted = self._test.predict(forward)
        metrics = measure(predicted, data.test.outcomes, data.codec, self._base)
        return Evaluation(
            metrics=metrics, primary=PRIMARY, higher_is_better=True, selection_loss=loss
        )


class _HeldOut:
    """Rows to predict after each epoch, as inputs on *device*."""

    def __init__(self, part: DataPart, codec: TargetCodec, device: str) -> None:
        self._codec, self._rows = codec, len(part.features)
        size = _ROWS_IN_CACHE if torch.device(device).type == "cpu" else max(1, self._rows)
        self._chunks = [
            {name: tensor.to(device) for name, tensor in inputs.items()}
            for inputs in part.features.split_inputs(size)
        ]

    @torch.no_grad()
    def predict(self, forward: Forward) -> TargetDistributions:
        names, start = head_outputs(self._codec), 0
        raw: dict[str, Tensor] = {}
        for chunk in self._chunks:
            output = forward(chunk)
            for name in names:
                part_MNK = output[name]
                members, rows, width = part_MNK.shape
                if name not in raw:
                    raw[name] = torch.empty(members, self._rows, width, dtype=torch.float64)
                raw[name][:, start : start + rows] = part_MNK
            start += rows
        return predictive_distributions(raw, self._codec, self._rows)


class _CosineDecay(LRScheduler):
    """Sets the learning rates of `_cosine` in so many *steps*.

    It gives the numbers of torch's ``LambdaLR``, whose own ``step`` takes 1 to 2 % of a step of a
    small model.
    """

    def __init__(self, optimizer: Optimizer, steps: int) -> None:
        self._steps = steps
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        share = _cosine(self._steps, self.last_epoch)
        return [base * share for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        self._step_count += 1
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        share, self._last_lr = _cosine(self._steps, self.last_epoch), []
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            rate = base * share
            self._last_lr.append(rate)
            if isinstance(group["lr"], Tensor):  # as CUDA graphs need it
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def _cosine(steps: int, step: int) -> float:
    """Return the learning rate at *step* as a share of the initial one."""
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(step / steps, 1.0)))
