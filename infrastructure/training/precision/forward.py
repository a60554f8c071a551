"""The model as a loss function sees it: half precision inside, float32 outside."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.torch_internals.compiled_backward import backward_without_autocast
from infrastructure.training.distributed.modules import is_distributed, method_of, unwrapped
from infrastructure.training.precision.compiled_calls import CompiledCalls
from infrastructure.training.precision.frozen_halves import (
    frozen_halves,
    half_buffers,
    in_float32,
)
from infrastructure.training.precision.kernels import missing_kernel
from infrastructure.training.precision.outputs import to_float32
from infrastructure.training.precision.precision import Precision

_METHODS_OF_EVERY_MODULE = frozenset(dir(Module))


class PrecisionForward:
    """Runs a module under a precision and returns float32; implements `Forward`.

    A loss is computed inside `loss_region`: the outer autocast keeps one cast of each weight for
    all calls of a step, the inner one switches autocast off for the loss itself. Frozen
    half parameters that the precision cannot use are seen in float32.

    Args:
        compiled: Compiles the calls; None for eager ones.
        raised: Names of the modules that are in FP32 for now; compiled for each set of them.
        caches: Whether one cast of each weight is kept for all calls in an outer region.
    """

    __slots__ = (
        "_compiled",
        "_device",
        "_device_type",
        "_enabled",
        "_half_buffers",
        "_halves",
        "_loss_outer",
        "_method_of",
        "_module",
        "_off",
        "_on",
        "_precision",
        "_raised",
    )

    def __init__(
        self,
        module: Module,
        device: torch.device,
        precision: Precision,
        compiled: CompiledCalls | None = None,
        *,
        raised: Sequence[str] = (),
        caches: bool = True,
    ) -> None:
        self._module, self._compiled, self._raised = module, compiled, tuple(raised)
        self._method_of = method_of if is_distributed(module) else getattr
        self._device, self._device_type, self._precision = device, device.type, precision
        self._enabled = precision is not Precision.FP32
        self._halves = frozen_halves(module, precision.compute)
        self._half_buffers = half_buffers(module, precision.compute) if self._halves else []
        # FP32 enters a disabled region: a caller's own autocast must not turn a rollback into
        # half precision.
        dtype = precision.compute if self._enabled else torch.bfloat16

        def region(enabled: bool) -> torch.autocast:
            cached = None if caches else False  # None: as outside of it
            return torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=cached)

        self._loss_outer = region(self._enabled)
        self._off = region(False)
        self._on = region(self._enabled)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` of the module; half tensors in its result become float32."""
        return self._run("__call__", self._module, *args, **kwargs)

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the module's method *name* under the same precision; results are float32.

        Raises:
            AttributeError: The module has no such method.
        """
        try:
            method = self._method_of(self._module, name)
        except AttributeError as error:
            raise self._unknown_method(name) from error
        if not callable(method):
            raise self._unknown_method(name)
        return self._run(name, method, *args, **kwargs)

    def _unknown_method(self, name: str) -> AttributeError:
        module = unwrapped(self._module)
        methods = [method for method in dir(type(module)) if method not in _METHODS_OF_EVERY_MODULE]
        close = difflib.get_close_matches(name, methods, n=3, cutoff=0.5) or sorted(methods)[:5]
        known = f"it has {', '.join(close)}" if close else "it has none but forward"
        return AttributeError(
            f"forward.method({name!r}): {type(module).__name__} has no such method; {known}"
        )

    def _run(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._compiled is not None:
            function = partial(self._compiled.call, (name, self._precision, self._raised), function)
        if self._halves:
            function = in_float32(self._module, self._halves, self._half_buffers, function)
        if not self._enabled:
            if not torch.is_autocast_enabled(self._device_type):  # as within compute_loss
                return function(*args, **kwargs)
            with self._off:
                return function(*args, **kwargs)
        try:
            with self._on, backward_without_autocast(compiles=self._compiled is not None):
                result = function(*args, **kwargs)
        except RuntimeError as error:
            missing = missing_kernel(error, self._module, self._precision, self._device)
            if missing is None:
                raise
            raise missing from error
        if isinstance(result, Tensor):
            return to_float32(result)
        return to_float32(result, in_use=partial(self._is_in_use, (*args, *kwargs.values())))

    def _is_in_use(self, arguments: tuple[object, ...], value: object) -> bool:
        """Whether *value* was passed in or, unless a mapping, is an attribute of a module."""
        if isinstance(value, Mapping):  # a result; the modules are many
            return any(value is argument for argument in arguments)
        return any(value is argument for argument in arguments) or any(
            value is var for module in self._module.modules() for var in vars(module).values()
        )

    def compute_loss(self, loss: Callable[[Any, Any], Tensor], batch: Any) -> Tensor:
        """Call ``loss(self, batch)`` with autocast off around it; return its result."""
        if not self._enabled:
            if not torch.is_autocast_enabled(self._device_type):
                return loss(self, batch)
            with self._off:
                return loss(self, batch)
        with self._loss_outer, self._off:
            return loss(self, batch)

    def under(self, name: str) -> PrecisionForward:
        """The same model in the precision *name*: what a part in another one sees.

        FP32 stays FP32.
        """
        precision = Precision(name) if self._enabled else Precision.FP32
        # Autocast would find the casts of this forward pass, which are of another type.
        return PrecisionForward(self._module, self._device, precision, caches=False)

    def backward(self, function: Callable[..., Any], *args: Any) -> None:
        """Run *function*, a backward pass: what it recomputes sees what the calls saw."""
        if self._halves:
            function = in_float32(self._module, self._halves, self._half_buffers, function)
        function(*args)

    def without_autocast(self) -> AbstractContextManager[Any]:
        """A region for evaluation: outside the training region, without cached casts."""
        return self._off

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"forward.{name} would bypass the precision and compute in FP32: call "
            f"forward(...) or forward.method({name!r}, ...)"
        )


def checked_loss(loss: object) -> Tensor:
    """Return *loss* if it is a float32 scalar attached to the graph.

    Raises:
        TypeError: It is not a tensor, or not float32.
        ValueError: It is not a scalar, or does not depend on the parameters.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss must be a tensor, got {type(loss).__name__}")
    if loss.dtype != torch.float32:
        raise TypeError(
            f"the loss must be float32, got {loss.dtype}: compute it from what forward(...) "
            "returns, which is float32 already"
        )
    if loss.ndim != 0:
        raise ValueError(f"the loss must be a scalar, got shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ValueError("the loss does not depend on the parameters: call forward(...) in it")
    return loss


def explain_backward_error(error: Exception, loss: object) -> None:
    """Raise an error with the remedy if *error* of a backward pass is due to a wrong *loss*.

    Raises:
        RuntimeError: The loss, or another one from the same forward pass, was used before.
        TypeError, ValueError: See `checked_loss`.
    """
    checked_loss(loss)
    if "backward through the graph a second time" in str(error):
        raise RuntimeError(
            "the graph of this loss is gone: each loss from training_step() is for one step(). For "
            "another step call training_step() again; add up losses that share a forward pass"
        ) from error
