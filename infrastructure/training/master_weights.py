"""FP16 parameters in the model, FP32 master copies under the optimizer.

Micikevicius et al. 2018, "Mixed Precision Training", section 3.1: an update below half a unit in
the last place of an FP16 weight would be lost; the FP32 master keeps it.
"""

from __future__ import annotations

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer


class MasterWeights:
    """Casts a model's float32 parameters to FP16 and puts FP32 masters into the optimizer.

    Args:
        model: Its parameters stay the same objects; only their data are cast. Buffers, such as
            the statistics of a normalisation, stay float32.
        optimizer: Its groups and state are moved to the masters.
        chosen: Parameters the optimizer updates.

    Attributes:
        parameters: The masters, float32, in the order of *chosen*.
    """

    def __init__(self, model: Module, optimizer: Optimizer, chosen: list[Parameter]) -> None:
        self._model, self._optimizer, self._chosen = model, optimizer, chosen
        self._frozen = [p for p in model.parameters() if not any(p is q for q in chosen)]
        self._frozen_data = [p.data for p in self._frozen]
        self.parameters = [Parameter(p.detach().clone()) for p in chosen]
        _swap(optimizer, dict(zip(chosen, self.parameters, strict=True)))
        for parameter in model.parameters():
            if parameter.dtype == torch.float32:
                parameter.data = parameter.data.half()
                parameter.grad = None

    def take_gradients(self) -> None:
        """Add the FP16 gradients of one micro-batch to the masters' in float32."""
        for half, master in zip(self._chosen, self.parameters, strict=True):
            if half.grad is None:
                continue
            if master.grad is None:
                master.grad = half.grad.float()
            else:
                master.grad += half.grad
            half.grad = None

    def update_model(self) -> None:
        """Copy the masters into the model's FP16 parameters."""
        for half, master in zip(self._chosen, self.parameters, strict=True):
            half.data.copy_(master.data)

    def remove(self) -> list[Parameter]:
        """Give the model its float32 parameters back, and the optimizer the model's.

        Returns:
            The model's parameters, in the order of *chosen*.
        """
        for half, master in zip(self._chosen, self.parameters, strict=True):
            half.data = master.data
        for parameter, data in zip(self._frozen, self._frozen_data, strict=True):
            parameter.data = data
        _swap(self._optimizer, dict(zip(self.parameters, self._chosen, strict=True)))
        return self._chosen


def _swap(optimizer: Optimizer, new: dict[Parameter, Parameter]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [new.get(p, p) for p in group["params"]]
    for old, parameter in new.items():
        if old in optimizer.state:
            optimizer.state[parameter] = optimizer.state.pop(old)
