"""Gradients of the mean loss of an experiment, one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.events import Role
from infrastructure.precision_lab.experiment import GRADIENT


class MeanGradients:
    """Adds up the gradients of some losses, each divided by their number, in float32.

    Args:
        modules: Trained modules by role.
        losses: Number of losses.
        loss_scale: Factor of a loss in the backward pass, divided out of the gradients.
    """

    def __init__(self, modules: Mapping[Role, Module], losses: int, loss_scale: float) -> None:
        self._parameters = {
            f"{GRADIENT}{role}.{name}": parameter
            for role, module in modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self._losses, self._loss_scale = losses, loss_scale
        self._sums: dict[str, Tensor] = {}

    def add(self, loss: Tensor, within: Callable[..., Any] | None = None) -> None:
        """Add the gradients of *loss*, []. They have the types of the parameters before that.

        Args:
            within: Calls its argument in the region of the forward pass, which activation
                checkpointing repeats in the backward pass.
        """
        scaled = loss * self._loss_scale
        for parameter in self._parameters.values():
            parameter.grad = None
        # Of the whole graph: checkpointing cannot give the gradients of single inputs.
        (within or _call)(lambda: _backward(scaled))
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            whole = torch.zeros_like(parameter) if gradient is None else gradient
            part = whole.detach().float().cpu() / (self._loss_scale * self._losses)
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def quantities(self) -> dict[str, Tensor]:
        """Gradient of the mean loss by ``gradient:<role>.<parameter>``, float32 on the CPU."""
        return self._sums


def _call(function: Callable[[], None]) -> None:
    function()


def _backward(loss: Tensor) -> None:
    edge = torch.autograd.graph.get_gradient_edge(loss)  # else no mode is active in the pass
    with torch.autocast(loss.device.type, enabled=False):  # as in a training
        torch.autograd.backward(edge)
