"""Copies of a model, and a clear error for a model that cannot be copied."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.torch_internals.modules import REGISTRIES


class UncopyableModelError(RuntimeError):
    """A model holds something that Python cannot copy, such as a lock or a generator.

    Args:
        place: The attribute and its module.
        error: Why it cannot be copied.
    """

    def __init__(self, place: str, error: Exception) -> None:
        super().__init__(
            f"the model cannot be copied: {place}: {error}. Keep it outside the model, or define "
            "__deepcopy__ for it"
        )


def copy_model(model: Module, shared: Iterable[Tensor] = ()) -> Module:
    """Return a deep copy of *model*, which holds the tensors *shared* themselves.

    Raises:
        UncopyableModelError: An attribute of a module cannot be copied; the message names it.
        torch.OutOfMemoryError: The device has no room for the copy.
    """
    try:
        return copy.deepcopy(model, _kept(shared))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the copied objects may raise any
        raise UncopyableModelError(_find_place(model), error) from error


def _find_place(model: Module) -> str:
    """The first attribute that cannot be copied alone, and its module."""
    kept = [*model.modules(), *model.parameters()]
    for name, module in model.named_modules():
        attributes = {key: value for key, value in vars(module).items() if key not in REGISTRIES}
        for key, value in {**attributes, **dict(module.named_buffers(recurse=False))}.items():
            try:
                copy.deepcopy(value, _kept(kept))
            except Exception:  # the copied objects may raise any
                return f"'{key}' of {name or 'the model'} ({type(module).__name__})"
    return type(model).__name__


def _kept(objects: Iterable[Any]) -> dict[int, Any]:
    """The memory of `copy.deepcopy` by which it takes *objects* themselves."""
    return {id(item): item for item in objects}
