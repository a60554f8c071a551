"""The types that a module is seen to compute in, for the record of a cell."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Linear, Module

from infrastructure.events.precision_state import PrecisionName
from infrastructure.training.precision import Precision

_NAMES: dict[torch.dtype, PrecisionName] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}


def dtype_of(name: PrecisionName) -> torch.dtype:
    """Dtype of a type's name."""
    return Precision(name).compute


def name_of(dtype: torch.dtype) -> PrecisionName:
    """Name of a dtype: fp32, fp16 or bf16."""
    return _NAMES[dtype]


class SeenTypes:
    """The types that the last linear layer of a module is seen to store and to compute in.

    Args:
        module: Module with at least one linear layer.
    """

    def __init__(self, module: Module) -> None:
        self._layer = [layer for layer in module.modules() if isinstance(layer, Linear)][-1]
        self._compute: torch.dtype | None = None
        self._layer.register_forward_hook(self._see)

    def _see(self, _layer: Module, _inputs: object, output: Tensor) -> None:
        self._compute = output.dtype

    def describe(self, out: Tensor) -> str:
        """``store/compute/out`` after a call whose result, *out*, is the role's.

        Raises:
            RuntimeError: The layer has not run.
        """
        if self._compute is None:
            raise RuntimeError("the last linear layer has not run: its types are unknown")
        return "/".join(map(name_of, (self._layer.weight.dtype, self._compute, out.dtype)))
