"""Injected faults of a model, of a loss and of data, and the networks around them.

FP32 can train with all of them except `insert_nan`, where the data are at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from infrastructure.agent_contract import Forward

ONSET_STEP = 300  # most faults begin here, after the guard has seen the agent healthy
INPUTS = 4

Batch = Mapping[str, Tensor]
Fault = Callable[[Tensor, int], Tensor]


# Faults of the model: called with activations and the number of steps since the onset.


class Onset(nn.Module):
    """Identity for *after* training steps, then applies *fault*.

    A buffer counts the steps, so that a checkpoint restores the count with the weights.
    """

    steps: Tensor

    def __init__(self, fault: Fault, after: int = ONSET_STEP) -> None:
        super().__init__()
        self._fault, self._after = fault, after
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return *x*, or after the onset the result of the fault."""
        if not self.training:
            return x
        self.steps += 1
        since = int(self.steps) - self._after
        return self._fault(x, since) if since > 0 else x


def overflow_forward(x: Tensor, _since: int) -> Tensor:
    """Multiply by 100,000 and divide again: the largest FP16 number is 65504."""
    return x * 1e5 * 1e-5


def overflow_backward(x: Tensor, _since: int) -> Tensor:
    """Do the same to the gradient; every loss scale overflows."""
    changed: Tensor = _OverflowBackward.apply(x)
    return changed


def overflow_at_times(pattern: str) -> Fault:
    """Apply `overflow_backward` in the steps that have an x in the repeated *pattern*."""
    return lambda x, since: (
        overflow_backward(x, since) if pattern[since % len(pattern)] == "x" else x
    )


def round_coarsely(x: Tensor, _since: int) -> Tensor:
    """Add an offset and subtract it: FP16 numbers near 8192 are 8 apart."""
    return (x + 8192.0) - 8192.0


class _OverflowBackward(torch.autograd.Function):
    """Multiplies the gradient by 1 in FP32 and by infinity in FP16."""

    @staticmethod
    def forward(_context: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_context: object, gradient: Tensor) -> Tensor:
        return gradient * (torch.ones_like(gradient) * 1e30 * 1e-30)


# Models


def network(width: int, *middle: nn.Module) -> nn.Module:
    """Build two linear layers with *middle* between them."""
    return nn.Sequential(nn.Linear(INPUTS, width), *middle, nn.SiLU(), nn.Linear(width, 1))


def faulty_network(fault: Fault, after: int = ONSET_STEP) -> nn.Module:
    """Build a `network` with *fault* in the middle."""
    return network(32, Onset(fault, after))


class TwoHeads(nn.Module):
    """Two networks side by side: ``[B, 2]``."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = network(48), network(16)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the loss and the output of the metric."""
        return torch.cat((self.main(x), self.side(x)), dim=1)


# Losses


def squared_error(forward: Forward, batch: Batch) -> Tensor:
    """Return the mean squared error of the first output."""
    output: Tensor = forward(batch["x"])[:, :1]
    return (output - batch["y"]).square().mean()


def tiny_loss(factor: float, forward: Forward, batch: Batch) -> Tensor:
    """Return `squared_error` times *factor*: at 1e-12 all FP16 gradients underflow."""
    return factor * squared_error(forward, batch)


def tiny_side_loss(forward: Forward, batch: Batch) -> Tensor:
    """Return `squared_error` plus a second error so small that its FP16 gradients underflow."""
    outputs: Tensor = forward(batch["x"])
    errors: Tensor = (outputs - batch["y"]).square().mean(0)
    return errors[0] + 1e-12 * errors[1]


# Data


def unchanged(x: Tensor, _step: int) -> Tensor:
    """Return *x*."""
    return x


def insert_nan(x: Tensor, step: int) -> Tensor:
    """From the onset on, replace the first row of each batch by NaN."""
    return x if step < ONSET_STEP else torch.where(torch.arange(len(x))[:, None] == 0, math.nan, x)
