"""FP16 parameters in the model, FP32 master copies under the optimizer.

Micikevicius et al. 2018, "Mixed Precision Training", section 3.1: an update below half a unit in
the last place of an FP16 weight would be lost; the FP32 master keeps it.
"""

from __future__ import annotations

import torch
from torch.nn import BatchNorm1d, BatchNorm2d, BatchNorm3d, Module, Parameter, SyncBatchNorm
from torch.optim import Optimizer

from infrastructure.training.precision.keep_fp32 import is_kept

_BATCH_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm)


class MasterWeights:
    """Casts a model's float32 parameters to FP16 and puts FP32 masters into the optimizer.

    Args:
        model: Model whose parameters stay the same objects; only their data are cast. Buffers
            stay float32, and so do the parameters of modules kept in FP32, and of a batch
            normalisation, whose kernels need the dtype of its statistics.
        optimizer: Optimizer whose groups and state move to the masters.
        chosen: Parameters the optimizer updates.

    Attributes:
        parameters: Parameters the optimizer updates now, float32, in the order of *chosen*:
            masters, and parameters that are not cast.
    """

    def __init__(self, model: Module, optimizer: Optimizer, chosen: list[Parameter]) -> None:
        self._optimizer, self._chosen = optimizer, chosen
        cast = {p: p.data for p in castable_parameters(model)}
        self._masters = {p: Parameter(p.detach().clone()) for p in chosen if p in cast}
        self._others = {p: data for p, data in cast.items() if p not in self._masters}
        self.parameters = [self._masters.get(p, p) for p in chosen]
        _swap(optimizer, self._masters)
        for parameter in cast:
            parameter.data = parameter.data.half()
            parameter.grad = None

    def take_gradients(self) -> None:
        """Add the FP16 gradients of one micro-batch to the masters' in float32."""
        for half, master in self._masters.items():
            if half.grad is None:
                continue
            if master.grad is None:
                master.grad = half.grad.float()
            else:
                master.grad += half.grad
            half.grad = None

    def clear_gradients(self) -> None:
        """Leave no gradient in the FP16 parameters."""
        for half in self._masters:
            half.grad = None

    def update_model(self) -> None:
        """Copy the masters into the model's FP16 parameters."""
        for half, master in self._masters.items():
            half.data.copy_(master.data)

    def remove(self) -> list[Parameter]:
        """Restore the model's float32 parameters, also in the optimizer; return *chosen*."""
        for half, master in self._masters.items():
            half.data = master.data
        for parameter, data in self._others.items():  # something else may have changed it
            is_same = torch.equal(parameter.data, data.half())
            parameter.data = data if is_same else parameter.data.float()
        _swap(self._optimizer, {master: half for half, master in self._masters.items()})
        return self._chosen


def castable_parameters(model: Module) -> list[Parameter]:
    """Float32 parameters of *model* that may be held in a half type.

    Those of modules kept in FP32 may not, and those of a batch normalisation may not either: its
    kernels need the dtype of its statistics.
    """
    modules = [
        module for module in model.modules() if isinstance(module, _BATCH_NORMS) or is_kept(module)
    ]
    kept = {p for module in modules for p in module.parameters(recurse=False)}
    return [p for p in model.parameters() if p.dtype == torch.float32 and p not in kept]


def _swap(optimizer: Optimizer, new: dict[Parameter, Parameter]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [new.get(p, p) for p in group["params"]]
    for old, parameter in new.items():
        if old in optimizer.state:
            optimizer.state[parameter] = optimizer.state.pop(old)
