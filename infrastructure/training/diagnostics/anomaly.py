"""Finds the first operation that makes a number that is not finite. Slow: for looking, not running.

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
from torch.utils._python_dispatch import TorchDispatchMode

from infrastructure.training.diagnostics.autograd_nodes import (
    NameNodes,
    floating_tensors,
    named_nodes,
)
from infrastructure.training.diagnostics.running_modules import RunningModules

F = TypeVar("F")
B = TypeVar("B")

# These put infinities where their caller wants them, as a mask does.
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
    """Where finite numbers went in and others came out.

    Attributes:
        module: Qualified name and class of the innermost module.
        operation: Of aten in the forward pass, of autograd in the backward pass.
    """

    module: str
    operation: str

    def __str__(self) -> str:
        return f"{self.operation} in {self.module}"


class AnomalyDetector:
    """Watches forward and backward passes and logs ``anomaly`` where a number is not finite.

    An overflow that the loss scale will mend is told too, with the scale: under FP16 look at those
    that stay when the scale has come down.

    Args:
        model: Hooked while it is watched.
    """

    def __init__(self, model: Module) -> None:
        self._model, self._passes = model, 0
        self._forward: Origin | None = None
        self._backward: Origin | None = None

    def watched(self, compute_loss: Callable[[F, B], Tensor]) -> Callable[[F, B], Tensor]:
        """*compute_loss*, with every operation in it checked and known by its module."""

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
        """Backpropagate *loss*, and log where this pass or the forward pass went wrong.

        Args:
            loss: From a `watched` function, scaled or not.
        """
        self._passes += 1
        self.trace(loss, Tensor.backward)
        finite = bool(loss.isfinite())
        if not finite or self._backward is not None:
            log.warning(
                "anomaly",
                backward_pass=self._passes,
                loss_is_finite=finite,
                forward=str(self._forward or "nothing"),
                backward=str(self._backward or "nothing"),
            )

    def trace(self, loss: Tensor, backward: Callable[[Tensor], object]) -> Origin | None:
        """Call *backward* with *loss*; where these two passes first went wrong, None if nowhere."""
        self._backward = None
        for node, module in named_nodes(loss):
            node.register_hook(self._check(Origin(module, node.name())))
        backward(loss)
        return self._forward or self._backward

    def _check(self, origin: Origin) -> Callable[..., None]:
        def check(inputs: tuple[Tensor | None, ...], _: object) -> None:
            """Of a node: the gradients of its inputs, which it has just computed."""
            if self._backward is None and not _is_finite(inputs):
                self._backward = origin

        return check


class _FirstNonFinite(TorchDispatchMode):
    def __init__(self, running: RunningModules) -> None:
        super().__init__()
        self._running = running
        self._made: Origin | None = None
        self._given: Origin | None = None

    @property
    def found(self) -> Origin | None:
        """The first that made it of finite numbers; else the first that was given it."""
        return self._made or self._given

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if self._made or name.startswith(_MAY_FILL) or _is_finite(result):
            return result
        if _is_finite((args, kwargs)):
            self._made = Origin(str(self._running), name)
        elif self._given is None:
            self._given = Origin(str(self._running), f"{name} of a value that was not finite")
        return result


def _is_finite(values: Any) -> bool:
    return all(bool(torch.isfinite(t.detach()).all()) for t in floating_tensors(values))
