"""Losses that go wrong, each in its own way."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Tensor]


class _InfiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.full_like(grad, math.inf)


def infinite_gradient(forward: Any, batch: Batch) -> Tensor:
    """A finite loss whose gradient is infinite at any scale."""
    result: Tensor = _InfiniteGradient.apply(forward(batch["x"]).mean())
    return result


def nan_loss(forward: Any, batch: Batch) -> Tensor:
    """A loss that is NaN, and so are its gradients."""
    result: Tensor = forward(batch["x"]).mean() * math.nan
    return result
