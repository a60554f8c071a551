"""Memory that a precision saves, and error that it adds to the gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from infrastructure.training.diagnostics.job_copy import JobCopy, disable_dropout
from infrastructure.training.diagnostics.preflight.verdict import LARGEST_GRADIENT_ERROR
from infrastructure.training.inputs import random_state, restore_random_state, same_random_state
from infrastructure.training.precision import Precision


def saved_bytes(job: JobCopy, precision: Precision) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage counted once.

    Parameters, buffers and the batch exist anyway and do not count; half copies of the weights do.
    """
    model, batch = job.model(), job.batches[0]
    resident = [*model.parameters(), *model.buffers(), *batch.values()]
    known = {tensor.untyped_storage().data_ptr() for tensor in resident}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = job.loss(model, batch, precision)
    del loss  # until here the graph keeps the storages, so that no address is reused
    return sum(kept.values())


def gradient_error(job: JobCopy, precision: Precision, scale: float) -> float | None:
    """Distance of *precision*'s gradient from FP32's, divided by the norm of FP32's.

    Dropout is off. Infinite where the gradient is not finite. A model that draws random numbers
    anyway may draw different ones in half precision from the same generator; None where that could
    explain the difference.

    Args:
        job: Job copy; the gradient is the mean over its batches.
        precision: A half type.
        scale: Loss scale for *precision*.
    """
    before = random_state(job.device)
    exact = _gradient(job, Precision.FP32, 1.0)
    is_random = not same_random_state(before, random_state(job.device))
    restore_random_state(before, job.device)
    difference = (_gradient(job, precision, scale) - exact).norm().item()
    if difference == 0.0:
        return 0.0
    error = difference / exact.norm().clamp(min=torch.finfo(torch.float64).tiny).item()
    if is_random and not error <= LARGEST_GRADIENT_ERROR:
        return None
    return math.inf if math.isnan(error) else error


def _gradient(job: JobCopy, precision: Precision, scale: float) -> Tensor:
    """Float64 ``[P]``: the unscaled gradient of all parameters."""
    model = job.model()
    disable_dropout(model)
    for batch in job.batches:
        (job.loss(model, batch, precision) * scale).backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(gradients).double() / (scale * len(job.batches))
