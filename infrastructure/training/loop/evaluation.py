"""Held-out metrics in FP32, the precision of a published model; and the FP32 baseline."""

from __future__ import annotations

import torch
from torch.nn import Module

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import Evaluated
from infrastructure.training.precision import Precision, PrecisionForward


def evaluate_held_out(
    job: TrainingJob, model: Module, batch: Batch, device: torch.device, epoch: int
) -> tuple[Evaluation, Evaluated]:
    """Evaluate *model*; leaves it in evaluation mode.

    Args:
        job: Job whose ``evaluate`` and ``loss`` are called.
        model: Model on *device*, in this process alone.
        batch: Batch for the baseline; the same in every attempt.
        device: Device of model and batch.
        epoch: Epochs finished.

    Returns:
        The evaluation, and the event that reports it and the FP32 loss of *batch*.
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
