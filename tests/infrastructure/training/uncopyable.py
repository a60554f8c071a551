"""Models that cannot be copied once they have run."""

from __future__ import annotations

import threading

import torch
from torch import nn


class Remembering(nn.Module):
    """Keeps a tensor attached to its graph, which Python cannot copy."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.last: object = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        self.last = self.remember(y)
        return y

    def remember(self, y: torch.Tensor) -> object:
        """What is kept of the result *y*."""
        return y


class Locked(Remembering):
    """Keeps a lock."""

    def remember(self, y: torch.Tensor) -> object:
        return threading.Lock()


class Generating(Remembering):
    """Keeps a generator."""

    def remember(self, y: torch.Tensor) -> object:
        return (row for row in y)


UNCOPYABLE = (Remembering, Locked, Generating)
