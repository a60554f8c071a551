"""Norms of gradients in float64."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import Parameter


def gradient_norm(parameters: Iterable[Parameter], *, scale: float = 1.0) -> float:
    """Euclidean norm of all gradients, divided by *scale*; float64, waits for the device.

    ``policy_grad_norm`` and ``value_grad_norm`` of dtype-rlhf are this norm over the parameters of
    the policy and of the value head, before clipping. Parameters without a gradient are left out;
    without any the norm is 0. A NaN or infinity in a gradient is one in the norm. The squares are
    float64, so the norm of finite gradients is finite, which is not so in float32.

    Args:
        parameters: Parameters after a backward pass.
        scale: Loss scale that the gradients still contain.
    """
    total = torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        if parameter.grad is not None:
            total += parameter.grad.detach().double().square().sum().cpu()
    return total.sqrt().item() / scale
