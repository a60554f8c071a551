"""What a precision saves in memory and spoils in the gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from infrastructure.training.diagnostics.dropout import switch_off_dropout
from infrastructure.training.diagnostics.preflight.verdict import LARGEST_GRADIENT_ERROR
from infrastructure.training.diagnostics.workbench import Workbench
from infrastructure.training.inputs.generators import random_state, restore_random_state
from infrastructure.training.precision.precision import Precision


def saved_bytes(bench: Workbench, precision: Precision) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage counted once.

    Parameters, buffers and the batch are there anyway and do not count; half copies of the
    weights do.
    """
    model, batch = bench.model(), bench.batches[0]
    resident = [*model.parameters(), *model.buffers(), *batch.values()]
    known = {tensor.untyped_storage().data_ptr() for tensor in resident}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = bench.loss(model, batch, precision)
    del loss  # until here the graph keeps the storages, so that no address is used twice
    return sum(kept.values())


def gradient_error(bench: Workbench, precision: Precision, scale: float) -> float | None:
    """Distance of *precision*'s gradient from FP32's, by the length of FP32's.

    Dropout is switched off. Infinite where the gradient is not finite. A model that draws random
    numbers all the same may draw others in half precision from the same generator; None where
    the gradients differ by as much as that would explain.

    Args:
        bench: The gradient is the mean's over its batches.
        precision: A half type.
        scale: Loss scale for *precision*.
    """
    before = random_state(bench.device)
    exact = _gradient(bench, Precision.FP32, 1.0)
    is_random = not _same_generators(before, random_state(bench.device))
    restore_random_state(before, bench.device)
    difference = (_gradient(bench, precision, scale) - exact).norm().item()
    if difference == 0.0:
        return 0.0
    error = difference / exact.norm().clamp(min=torch.finfo(torch.float64).tiny).item()
    if is_random and not error <= LARGEST_GRADIENT_ERROR:
        return None
    return math.inf if math.isnan(error) else error


def _gradient(bench: Workbench, precision: Precision, scale: float) -> Tensor:
    """Float64 ``[P]``: the unscaled gradient of all parameters."""
    model = bench.model()
    switch_off_dropout(model)
    for batch in bench.batches:
        (bench.loss(model, batch, precision) * scale).backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(gradients).double() / (scale * len(bench.batches))


def _same_generators(one: dict[str, object], other: dict[str, object]) -> bool:
    return all(
        torch.equal(one[name], other[name])  # type: ignore[arg-type]  # a tensor, or None in both
        for name in ("torch", "cuda")
        if one[name] is not None
    )
