"""How a kind of network computes for several members at once.

Shapes: F members, B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module


class NotStackableError(ValueError):
    """A model, or one call of it, cannot be computed together with others.

    Args:
        reason: Why, as the second half of "it trains alone: ".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"it trains alone: {reason}")
        self.reason = reason


@dataclass(kw_only=True, slots=True)  # not frozen: one is made for every member in every step
class Call:
    """One member's call of its model.

    Attributes:
        arguments: Positional arguments.
        training: Whether the model is in training mode.
        generator: Generator of the member's dropout; None where it has none.
    """

    arguments: tuple[Any, ...]
    training: bool
    generator: torch.Generator | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Outputs of several calls.

    Attributes:
        raw: One float32 tensor of each member, or a stack of them, ``[F, ...]``. Where there is
            *backward*, the next forward pass may write to its memory.
        structure: Function from a member's raw tensor to what its model returns; of the stack, it
            gives the same with tensors ``[F, ...]``.
        backward: Function from the gradient of a stack *raw* to those of all parameters; None where
            *raw* is attached to their graph.
    """

    raw: Tensor | list[Tensor]
    structure: Callable[[Tensor], Any]
    backward: Callable[[Tensor], list[Tensor]] | None = None

    def stack(self) -> Tensor:
        """The raw outputs as one tensor without gradient."""
        raw = self.raw if isinstance(self.raw, Tensor) else torch.stack(self.raw)
        return raw.detach()

    def gradients(
        self, parameters: Sequence[Tensor], raw_gradient: Tensor | Sequence[Tensor]
    ) -> list[Tensor]:
        """Gradients of *parameters*, the stacks that `StackedForm.forward` was given.

        Args:
            raw_gradient: Gradient of the raw outputs, a stack or one tensor of each member.
        """
        if self.backward is not None and isinstance(raw_gradient, Tensor):
            return self.backward(raw_gradient)
        if isinstance(self.raw, Tensor) or not isinstance(raw_gradient, Tensor):
            weights: Any = raw_gradient
        else:
            weights = raw_gradient.unbind()
        gradients = torch.autograd.grad(self.raw, parameters, weights, allow_unused=True)
        pairs = zip(parameters, gradients, strict=True)
        return [torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs]


class StackedForm(Protocol):
    """A network that can compute for several members; every member's bits are those of its own."""

    @property
    def key(self) -> Hashable:
        """Equal for networks whose parameters can be stacked."""

    @property
    def draws(self) -> bool:
        """Whether the network draws random numbers in training."""

    def signature(self, model: Module, arguments: tuple[Any, ...]) -> Hashable:
        """Equal for calls that can be computed together.

        Raises:
            NotStackableError: The call cannot be computed together with another.
        """

    def forward(self, parameters: Mapping[str, Tensor], calls: Sequence[Call]) -> Outputs:
        """Compute *calls* under the autocast in force.

        Args:
            parameters: Stacks by parameter name, ``[F, *shape]``, in the order of *calls*.
            calls: Calls of equal signature, F of them.
        """


def dropout(value: Tensor, probability: float, generator: torch.Generator | None) -> Tensor:
    """Drop as ``torch.nn.functional.dropout`` does on a CPU, with numbers of *generator*."""
    if probability >= 1.0:
        return value * torch.zeros((), dtype=value.dtype, device=value.device)
    kept = torch.empty_like(value).bernoulli_(1.0 - probability, generator=generator)
    return value * kept.div_(1.0 - probability)
