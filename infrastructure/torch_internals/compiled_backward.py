"""torch's settings for the backward pass of compiled code.

`torch.compile` traces a backward pass during the forward pass, by default under the same autocast.
Such a backward pass computes in half precision what eager mode computes in float32, and overflows
where eager mode does not (pytorch #153044).
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from types import TracebackType

import torch

_COMPILER = "torch._dynamo"  # `torch.compile` imports it before it returns
_NOTHING: AbstractContextManager[None] = nullcontext()
_AUTOCAST, _EAGERLY = "backward_pass_autocast", "force_non_lazy_backward_lowering"


class _Setting:
    """Sets one of AOTAutograd's options inside a block, in this thread."""

    __slots__ = ("_before", "_config", "_name", "_value")

    def __init__(self, config: object, name: str, value: object) -> None:
        self._config, self._name, self._value = config, name, value
        self._before = getattr(config, name)

    def __enter__(self) -> None:
        setattr(self._config, self._name, self._value)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        setattr(self._config, self._name, self._before)


def backward_without_autocast(*, compiles: bool) -> AbstractContextManager[None]:
    """A block in which code is compiled for a backward pass outside of autocast, as eager code.

    Args:
        compiles: Whether the block may be the first to import the compiler. Without it, the block
            costs next to nothing until somebody has imported the compiler.
    """
    return _setting(_AUTOCAST, "off") if compiles or _COMPILER in sys.modules else _NOTHING


def backward_compiled_with_forward() -> AbstractContextManager[None]:
    """A block in which a backward pass that cannot be compiled is an error of the forward pass."""
    return _setting(_EAGERLY, True)


def compile_unavailable_reason() -> str | None:
    """Reason compiled steps in half precision would differ from eager ones, or None."""
    if _has(_AUTOCAST):
        return None
    return (
        f"torch {torch.__version__} compiles backward passes under autocast, where they overflow "
        "and eager ones do not (pytorch #153044): use a torch whose documentation names "
        "backward_pass_autocast"
    )


def _setting(name: str, value: object) -> AbstractContextManager[None]:
    return _Setting(_config(), name, value) if _has(name) else nullcontext()


@cache
def _has(name: str) -> bool:
    return hasattr(_config(), name)


@cache
def _config() -> object:
    return import_module("torch._functorch.config")  # late: it is for half precision alone
