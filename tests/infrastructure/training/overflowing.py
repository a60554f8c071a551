"""Modules that take numbers out of a half type's range, each in its own way."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    """Multiplies by a constant: what it is given and its gradient may leave FP16's range."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class BackwardScaled(nn.Module):
    """Changes nothing forward and multiplies the gradient by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() + self.factor * (x - x.detach())


class Guarded(nn.Module):
    """Computes a value that FP16 cannot hold and does not use it: its gradient is 0 * infinity."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 99.0, torch.exp(x + 15.0), x)


class Masked(nn.Module):
    """Adds minus infinity where a softmax is to see nothing, as attention does."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1],), -torch.inf)
        mask[0] = 0.0
        return x + torch.softmax(x.float() + mask, 1)
