"""Held-out metrics in FP32, in which a published model is used; and the FP32 baseline."""

from __future__ import annotations

import torch
from torch.nn import Module

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import Evaluated
from infrastructure.training.precision.forward import PrecisionForward
from infrastructure.training.precision.precision import Precision


def evaluate_held_out(
    job: TrainingJob, model: Module, batch: Batch, device: torch.device, epoch: int
) -> tuple[Evaluation, Evaluated]:
    """Evaluate *model*; leaves it in evaluation mode.

    Args:
        job: Its ``evaluate`` and ``loss`` are called.
        model: On *device*, in this process alone.
        batch: The same in every attempt, for the baseline.
        device: Of model and batch.
        epoch: How many are finished.

    Returns:
        The evaluation, and the event that tells of it and of the FP32 loss of *batch*.
    """
    forward = PrecisionForward(model, device, Precision.FP32)
    model.eval()
    with torch.no_grad():
        with forward.without_autocast():
            evaluation = job.evaluate(forward)
        baseline = forward.compute_loss(job.loss, batch).item()
    event = Evaluated(
        epoch=epoch,
        metrics=dict(evaluation.metrics),
        primary=evaluation.primary,
        higher_is_better=evaluation.higher_is_better,
        fp32_baseline_loss=baseline,
    )
    return evaluation, event


def first_batch(job: TrainingJob, device: torch.device) -> Batch:
    """The batch that the FP32 baseline replays.

    Raises:
        ValueError: The job yields none.
    """
    batch = next(iter(job.batches(0)), None)
    if batch is None:
        raise ValueError("the training job yields no batches for epoch 0: nothing to train on")
    return to_device(batch, device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """*batch* with every tensor on *device*."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
