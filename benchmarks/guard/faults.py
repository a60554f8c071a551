"""What is planted: faults of a model, of a loss and of data, and the networks around them.

FP32 can train all of them but `missing`, where the data are at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from infrastructure.agent_contract import Forward

ONSET_STEP = 300  # most faults begin here: the guard has seen the agent healthy
INPUTS = 4

Batch = Mapping[str, Tensor]
Fault = Callable[[Tensor, int], Tensor]


# Faults of the model: called with activations, and how many steps there were since the onset.


class Onset(nn.Module):
    """Passes everything through for *after* training steps, then calls *fault*.

    The steps are counted in a buffer, so that they go back with the weights to a checkpoint.
    """

    steps: Tensor

    def __init__(self, fault: Fault, after: int = ONSET_STEP) -> None:
        super().__init__()
        self._fault, self._after = fault, after
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """*x*, or what the fault makes of it."""
        if not self.training:
            return x
        self.steps += 1
        since = int(self.steps) - self._after
        return self._fault(x, since) if since > 0 else x


def too_large(x: Tensor, _since: int) -> Tensor:
    """100,000 times *x*, and back: FP16 ends at 65504."""
    return x * 1e5 * 1e-5


def too_large_backward(x: Tensor, _since: int) -> Tensor:
    """The same to the gradient: no loss scale helps."""
    changed: Tensor = _TooLargeBackward.apply(x)
    return changed


def too_large_at_times(pattern: str) -> Fault:
    """`too_large_backward` in the steps that have an x in *pattern*, again and again."""
    return lambda x, since: (
        too_large_backward(x, since) if pattern[since % len(pattern)] == "x" else x
    )


def absorbed(x: Tensor, _since: int) -> Tensor:
    """An offset is added and taken away: FP16 numbers near 8192 are 8 apart."""
    return (x + 8192.0) - 8192.0


class _TooLargeBackward(torch.autograd.Function):
    """Multiplies the gradient by 1 in FP32 and by infinity in FP16."""

    @staticmethod
    def forward(_context: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_context: object, gradient: Tensor) -> Tensor:
        return gradient * (torch.ones_like(gradient) * 1e30 * 1e-30)


# Models


def network(width: int, *middle: nn.Module) -> nn.Module:
    """Two layers around whatever is put between them."""
    return nn.Sequential(nn.Linear(INPUTS, width), *middle, nn.SiLU(), nn.Linear(width, 1))


def planted(fault: Fault, after: int = ONSET_STEP) -> nn.Module:
    """A `network` with *fault* in it."""
    return network(32, Onset(fault, after))


class TwoHeads(nn.Module):
    """Two networks side by side: ``[B, 2]``."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = network(48), network(16)

    def forward(self, x: Tensor) -> Tensor:
        """What the loss is about, and what the metric is about."""
        return torch.cat((self.main(x), self.side(x)), dim=1)


# Losses


def squared_error(forward: Forward, batch: Batch) -> Tensor:
    """Mean squared error of the first output."""
    output: Tensor = forward(batch["x"])[:, :1]
    return (output - batch["y"]).square().mean()


def faint(factor: float, forward: Forward, batch: Batch) -> Tensor:
    """`squared_error` times *factor*: at 1e-12 FP16 holds none of its gradients."""
    return factor * squared_error(forward, batch)


def faint_side(forward: Forward, batch: Batch) -> Tensor:
    """`squared_error`, plus that of the second output so faint that FP16 loses its gradients."""
    outputs: Tensor = forward(batch["x"])
    errors: Tensor = (outputs - batch["y"]).square().mean(0)
    return errors[0] + 1e-12 * errors[1]


# Data


def clean(x: Tensor, _step: int) -> Tensor:
    """Nothing changed."""
    return x


def missing(x: Tensor, step: int) -> Tensor:
    """From the onset on, one number of each batch is missing."""
    return x if step < ONSET_STEP else torch.where(torch.arange(len(x))[:, None] == 0, math.nan, x)
