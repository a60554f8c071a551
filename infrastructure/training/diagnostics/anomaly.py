"""Finds the first operation that makes a number that is not finite; slow, for debugging.

Every operation is checked, and each check waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.torch_internals.dispatch_mode import TorchDispatchMode
from infrastructure.training.diagnostics.module_names import (
    NameNodes,
    RunningModules,
    floating_tensors,
    named_nodes,
)

F = TypeVar("F")
B = TypeVar("B")

# These put infinities where their caller asks for them, as a mask does.
_MAY_FILL = (
    "masked_fill",
    "full",
    "new_full",
    "fill_",
    "where",
    "scalar_tensor",
    "empty",
    "lift_fresh",
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Origin:
    """Operation whose input is finite and whose result is not.

    Attributes:
        module: Qualified name and class of the innermost module.
        operation: Name in aten in the forward pass, in autograd in the backward pass.
        received: The input was not finite either: a constant such as a mask, or the batch.
    """

    module: str
    operation: str
    received: bool = False

    def __str__(self) -> str:
        received = " of a value that was not finite" if self.received else ""
        return f"{self.operation}{received} in {self.module}"


@dataclass(frozen=True, slots=True)
class Origins:
    """Where each pass first was not finite; None where it was finite."""

    forward: Origin | None
    backward: Origin | None

    @property
    def first(self) -> Origin | None:
        """The forward pass's origin, else the backward pass's."""
        return self.forward or self.backward


class AnomalyDetector:
    """Checks forward and backward passes and logs ``anomaly_found`` where a number is not finite.

    It reports overflows that a lower loss scale repairs too: under FP16 look at those that remain
    when the scale has come down.

    Args:
        model: Model that gets hooks while it is checked.
    """

    def __init__(self, model: Module) -> None:
        self._model, self._passes = model, 0
        self._forward: Origin | None = None
        self._backward: Origin | None = None

    def instrument(self, compute_loss: Callable[[F, B], Tensor]) -> Callable[[F, B], Tensor]:
        """Wrap *compute_loss* so that every operation in it is checked and named by its module."""

        def compute(forward: F, batch: B) -> Tensor:
            running = RunningModules(self._model)
            first = _FirstNonFinite(running)
            try:
                with NameNodes(running), first:
                    return compute_loss(forward, batch)
            finally:
                running.remove()
                self._forward = first.found

        return compute

    def backward(self, loss: Tensor) -> None:
        """Backpropagate *loss*; log where this pass or the forward pass first was not finite.

        Args:
            loss: Result of an `instrument`ed function, scaled or not.
        """
        self._passes += 1
        self.trace(loss, Tensor.backward)
        finite = bool(loss.isfinite())
        if not finite or self._backward is not None:
            log.warning(
                "anomaly_found",
                backward_pass=self._passes,
                loss_is_finite=finite,
                forward=str(self._forward or "nothing"),
                backward=str(self._backward or "nothing"),
            )

    def trace(self, loss: Tensor, backward: Callable[[Tensor], object]) -> Origins:
        """Call *backward* with *loss*; return the origins in this pass and the forward pass."""
        self._backward = None
        for node, module in named_nodes(loss):
            node.register_hook(self._check(Origin(module, node.name())))
        backward(loss)
        return Origins(self._forward, self._backward)

    def _check(self, origin: Origin) -> Callable[..., None]:
        def check(inputs: tuple[Tensor | None, ...], _: object) -> None:
            """A node's hook; *inputs* are the gradients that it has just computed."""
            if self._backward is None and not _is_finite(inputs):
                self._backward = origin

        return check


class _FirstNonFinite(TorchDispatchMode):
    def __init__(self, running: RunningModules) -> None:
        super().__init__()
        self._running = running
        self._origin: Origin | None = None
        self._received: Origin | None = None

    @property
    def found(self) -> Origin | None:
        """First operation that made one of finite numbers, else the first that received one."""
        return self._origin or self._received

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if self._origin or name.startswith(_MAY_FILL) or _is_finite(result):
            return result
        if _is_finite((args, kwargs)):
            self._origin = Origin(str(self._running), name)
        elif self._received is None:
            self._received = Origin(str(self._running), name, received=True)
        return result


def _is_finite(values: Any) -> bool:
    return all(bool(torch.isfinite(t.detach()).all()) for t in floating_tensors(values))
