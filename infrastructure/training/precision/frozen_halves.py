"""Frozen parameters in FP16 or BF16, such as the base model under a LoRA adapter.

A half matrix stays as it is where half precision of its own type multiplies it. All other code sees
a float32 copy: every half number is a float32 number, so this is exact. Half buffers beside frozen
half parameters, such as running statistics, are seen likewise, and rounded where they are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module

from infrastructure.torch_internals.tensor_lists import copy_all

HALF_TYPES = (torch.float16, torch.bfloat16)


def frozen_halves(module: Module, compute: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The frozen half parameters of *module* that code of type *compute* cannot use as they are.

    Returns:
        Parameters by qualified name: all under float32; else those of the other half type, and
        vectors, since kernels of a normalisation want the type of their input or float32.
    """
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if not parameter.requires_grad and _is_unusable(parameter, compute)
    }


def half_buffers(module: Module, compute: torch.dtype = torch.float32) -> list[str]:
    """Qualified names of the half buffers of *module* that code of type *compute* cannot use."""
    return [name for name, buffer in module.named_buffers() if _is_unusable(buffer, compute)]


def _is_unusable(half: Tensor, compute: torch.dtype) -> bool:
    return half.dtype in HALF_TYPES and (half.dtype != compute or half.ndim < 2)


def in_float32(
    module: Module,
    halves: dict[str, Tensor],
    buffers: Sequence[str],
    function: Callable[..., object],
) -> Callable[..., object]:
    """*function* of *module*, which sees *halves* and *buffers* of *module* in float32.

    What it writes into a buffer is kept, rounded. The copies live as long as the graph of what
    *function* returns: 4 bytes for each number.
    """

    def call(*args: object, **kwargs: object) -> object:
        given = {f"module.{name}": module.get_buffer(name) for name in buffers}
        copies = {f"module.{name}": half.float() for name, half in halves.items()}
        copies |= {name: buffer.float() for name, buffer in given.items()}
        result = functional_call(_Caller(module), copies, (function, *args), kwargs)
        written = [
            (buffer, copies[name])
            for name, buffer in given.items()
            if buffer.shape == copies[name].shape
            and 0 not in buffer.stride()  # else nothing can write to it
            and not buffer.is_inference()
        ]
        if written:
            with torch.no_grad():
                copy_all([buffer for buffer, _ in written], [copy for _, copy in written])
        return result

    return call


class _Caller(Module):
    """Calls any function while *module* is a part of it."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        return function(*args, **kwargs)
