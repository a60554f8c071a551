"""Names that torch gives to what it keeps in a module."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.torch_internals.guard import UnavailableError

COMPILED = "_orig_mod"
"""Submodule in which the module that `torch.compile` returns keeps the one that it was given."""

REGISTRIES = ("_modules", "_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

for _name in (*REGISTRIES, *_HOOKS):
    if not hasattr(torch.nn.Identity(), _name):
        raise UnavailableError(f"nn.Module.{_name}", "a copy of a model")


def has_hooks(module: Module) -> bool:
    """Whether *module* has hooks of its forward or backward pass."""
    return any(getattr(module, hooks) for hooks in _HOOKS)


def buffer_places(model: Module) -> list[tuple[dict[str, Tensor | None], str]]:
    """Registry and name of each buffer of *model* and its modules.

    The registry is the module's own mapping: it tells at any time which tensor the buffer is.
    """
    return [(module._buffers, name) for module in model.modules() for name in module._buffers]
