"""Modules that compute in FP32 under every precision, for what half precision cannot do.

Such a module gets a ``forward`` of its own, which switches autocast off and casts its inputs. It is
a bound method, so that a copy of the model gets its own one, and it stays for the whole training:
activation checkpointing calls it again in the backward pass.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import PackedSequence

from infrastructure.torch_internals.modules import COMPILED
from infrastructure.training.distributed.modules import unwrapped
from infrastructure.training.precision.frozen_halves import (
    HALF_TYPES,
    frozen_halves,
    half_buffers,
    in_float32,
)

_MARK = "keeps_fp32"
_REPLACED = "_forward_before_keep_fp32"  # attribute of a module that had its own forward


class UnknownModuleError(ValueError):
    """A name in ``keep_fp32`` is not a module of the model.

    Args:
        pattern: Name or pattern that matches nothing.
        names: Qualified names of the model's modules.
    """

    def __init__(self, pattern: str, names: Iterable[str]) -> None:
        names = list(names)
        self.pattern = pattern
        if not names:
            super().__init__(
                f"keep_fp32 names {pattern!r}, but the model has no modules inside it: train it in "
                "FP32 (precision='fp32'), or pass a module that has it as an attribute, and name "
                "that attribute"
            )
            return
        close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
        close += [name for name in names if name.endswith(f".{pattern}")][: 3 - len(close)]
        known = close or names[:5]
        hint = f"did you mean {' or '.join(map(repr, known))}?" if close else f"some are {known}."
        super().__init__(
            f"keep_fp32 names {pattern!r}, but the model has no such module: {hint} Names are "
            "those of model.named_modules(); * matches any characters"
        )


def find_modules(model: Module, patterns: Iterable[str]) -> dict[str, Module]:
    """Modules of *model* that *patterns* name, and all modules inside them, by qualified name.

    Args:
        patterns: Qualified names, or patterns in which ``*`` matches any characters, dots too. A
            module's exact name matches that module alone.

    Raises:
        UnknownModuleError: A pattern matches no module.
    """
    patterns = tuple(patterns)
    if not patterns:
        return {}
    every = unwrapped(model).named_modules(remove_duplicate=False)  # a shared module has two names
    modules = {_plain(name): module for name, module in every if name}
    chosen: dict[str, Module] = {}
    for pattern in patterns:
        matching = [pattern] if pattern in modules else fnmatch.filter(modules, pattern)
        if not matching:
            raise UnknownModuleError(pattern, modules)
        for match in matching:
            inside = (name for name in modules if name == match or name.startswith(f"{match}."))
            chosen.update((name, modules[name]) for name in inside)
    return chosen


def keep_in_fp32(model: Module, patterns: Iterable[str], device: torch.device) -> None:
    """Have the modules of *model* that *patterns* name compute in FP32, until `release`.

    Modules that another call has named stay in FP32.

    Raises:
        UnknownModuleError: A pattern matches no module; nothing has changed.
    """
    for module in find_modules(model, patterns).values():
        _restore(module)  # it may have been on another device
        _keep(module, device)


class RaisedModules:
    """Modules of *model* in FP32 that change in a training, besides those of `keep_in_fp32`."""

    def __init__(self, model: Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self._raised: list[Module] = []

    def replace(self, names: Iterable[str]) -> None:
        """Raise the modules that *names* name, and lower those raised before.

        Raises:
            UnknownModuleError: A name matches no module; nothing has changed.
        """
        chosen = find_modules(self._model, names).values()
        for module in self._raised:
            _restore(module)
        self._raised = []
        for module in chosen:
            if not is_kept(module):
                _keep(module, self._device)
                self._raised.append(module)


def release(model: Module) -> None:
    """Undo `keep_in_fp32`."""
    for module in model.modules():
        _restore(module)


def _keep(module: Module, device: torch.device) -> None:
    attributes = vars(module)
    if "forward" in attributes:
        attributes[_REPLACED] = attributes["forward"]
    attributes["forward"] = MethodType(_fp32_forward(device.type), module)


def _restore(module: Module) -> None:
    if is_kept(module):
        attributes = vars(module)
        del attributes["forward"]
        if _REPLACED in attributes:
            attributes["forward"] = attributes.pop(_REPLACED)


def is_kept(module: Module) -> bool:
    """Whether `keep_in_fp32` chose *module*."""
    forward = vars(module).get("forward")
    return hasattr(getattr(forward, "__func__", None), _MARK)


def _fp32_forward(device_type: str) -> Callable[..., Any]:
    def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
        # Copies of `self` share this function: it must refer to no module.
        inner = vars(self).get(_REPLACED) or type(self).forward.__get__(self)
        if halves := frozen_halves(self):
            inner = in_float32(self, halves, half_buffers(self), inner)
        with torch.autocast(device_type, enabled=False):
            return inner(*_in_float32(args), **_in_float32(kwargs))

    setattr(forward, _MARK, True)
    return forward


def _in_float32(value: Any) -> Any:
    """Arguments with half tensors in float32; simple enough for `torch.compile` to trace."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF_TYPES else value
    if isinstance(value, PackedSequence):
        return value._replace(data=_in_float32(value.data))
    if type(value) is dict:
        return {key: _in_float32(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)([_in_float32(item) for item in value])
    return value


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != COMPILED)
