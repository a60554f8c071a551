"""Calls of a model by `torch.compile`, eager where that fails."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import structlog
import torch

from infrastructure.torch_internals.compiled_backward import (
    backward_compiled_with_forward,
    compile_unavailable_reason,
)
from infrastructure.training.inputs import random_state, restore_random_state

# Without it, all models of a class share torch's limit of compiled shapes.
_ISOLATED: dict[str, Any] = {
    name: True for name in signature(torch.compile).parameters if name == "isolate_recompiles"
}

log = structlog.get_logger()


class CompiledCalls:
    """Compiles one model's ``forward`` and methods when they are first called.

    The model itself does not change, so every other call of it is eager. torch keeps what it has
    compiled for each precision, shape of arguments and mode of the model, so a change back compiles
    nothing; by default it keeps eight for each function, and runs further ones eagerly. Every shape
    is a constant of its own code, so a resumed training computes the same numbers.

    Where a call fails that succeeds eagerly, every call is eager from then on.

    Args:
        backend: The backend of `torch.compile`.
        on_refused: Is called once, with the reason, when every further call is eager; by default
            that is logged as ``compile_refused``.

    Attributes:
        refused_reason: Reason every call is eager, or None.
    """

    def __init__(
        self,
        *,
        backend: str | Callable[..., Any] = "inductor",
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        self._backend = backend
        self._on_refused = on_refused or _log_refused
        self._compiled: dict[Hashable, Callable[..., Any]] = {}
        self.refused_reason: str | None = None
        if (reason := compile_unavailable_reason()) is not None:
            self.refuse(reason)

    def refuse(self, reason: str) -> None:
        """Run every call eagerly from now on, and tell why, unless that has been told."""
        if self.refused_reason is None:
            self.refused_reason = reason
            self._on_refused(reason)

    @contextmanager
    def eager_after(self, error: Exception) -> Iterator[None]:
        """Run the calls inside the block eagerly and, if it raises nothing, all later ones."""
        inner = getattr(error, "inner_exception", error)  # of a backend
        line = next(iter(str(inner).strip().splitlines()), "no message")
        self.refused_reason = f"{type(inner).__name__}: {line}"
        try:
            yield
        except BaseException:
            self.refused_reason = None
            raise
        self._on_refused(self.refused_reason)

    def call(
        self, key: Hashable, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call *function* of the model; equal *key*s share what has been compiled."""
        if self.refused_reason is not None:
            return function(*args, **kwargs)
        try:
            if key not in self._compiled:
                self._compiled[key] = torch.compile(
                    function, backend=self._backend, dynamic=False, **_ISOLATED
                )
            with backward_compiled_with_forward():
                return self._compiled[key](*args, **kwargs)
        except Exception as error:  # of the compiler, or the model's own
            with self.eager_after(error):
                return function(*args, **kwargs)


class EagerRetry:
    """Takes an accumulation window again, eagerly, where a compiled micro-batch of it fails.

    Compiled code that a loss differentiates twice fails in the backward pass, when gradients of the
    window are mixed already. So all its micro-batches are computed again, with the same random
    numbers.

    Args:
        calls: The compiled calls.
        device: Its random generator is restored, beside those of Python and torch.
        steps: Returns the number of optimizer steps attempted.
        drop_window: Leaves the trainer as before the window.
    """

    def __init__(
        self,
        calls: CompiledCalls,
        device: torch.device,
        steps: Callable[[], int],
        drop_window: Callable[[], None],
    ) -> None:
        self._calls, self._device = calls, device
        self._steps, self._drop_window = steps, drop_window
        # Micro-batches of the window under way, each with the random numbers before it.
        self._taken: list[tuple[Callable[[], None], dict[str, Any]]] = []

    def take(self, micro_batch: Callable[[], None], accumulated: int) -> None:
        """Take *micro_batch*, before which so many of its window are *accumulated*."""
        if self._calls.refused_reason is not None:
            micro_batch()
            return
        if accumulated == 0:
            self._taken = []
        steps, random = self._steps(), random_state(self._device)
        try:
            micro_batch()
        except RuntimeError as error:
            if self._steps() > steps or len(self._taken) < accumulated:
                raise  # after the attempt, or some were not taken here
            self._drop_window()
            with self._calls.eager_after(error):
                for each, before in (*self._taken, (micro_batch, random)):
                    restore_random_state(before, self._device)
                    each()
        self._taken.append((micro_batch, random))
        if self._steps() > steps:
            self._taken.clear()  # they hold batches


def _log_refused(reason: str) -> None:
    log.warning("compile_refused", reason=reason)
