"""A module that is trained in the types of its role, also without FP32 weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module

from infrastructure.events.precision_state import PrecisionName
from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab.errors import LabError
from infrastructure.training.precision import Precision
from infrastructure.training.precision.forward import PrecisionForward
from infrastructure.training.precision.master_weights import castable_parameters
from infrastructure.training.precision.outputs import cast_floats

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


class TrainedRole:
    """Runs a module in the types of its role, with gradients; `RoleForward` is for frozen ones.

    Its weights are kept in ``store``: with a half type there is no FP32 copy of them. Its
    operations run under autocast to ``compute``, and what it returns is cast to ``out``.

    Args:
        module: Module with float32 parameters, on *device*; its parameters are cast in place.
        device: Where it computes.
        precision: Types of its role.

    Attributes:
        module: The module. Calling it directly bypasses ``compute`` and ``out``.
        precision: The types.

    Raises:
        LabError: Weights in half precision are to be computed with in FP32.
    """

    def __init__(self, module: Module, device: torch.device, precision: RolePrecision) -> None:
        if precision.compute == "fp32" != precision.store:
            raise LabError(
                f"{precision} would train weights stored in {precision.store} with FP32 "
                "operations, which refuse them: compute in the type they are stored in"
            )
        self.module, self.precision = module, precision
        self._out = dtype_of(precision.out)
        if precision.store != "fp32":
            for parameter in castable_parameters(module):
                parameter.data = parameter.data.to(dtype_of(precision.store))
        self._forward = PrecisionForward(module, device, Precision(precision.compute))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; floating-point tensors in its result have the type ``out``."""
        return cast_floats(self._forward(*args, **kwargs), self._out)


class SeenTypes:
    """The types that the last linear layer of a module is seen to store and to compute in.

    Args:
        module: Module with at least one linear layer.
    """

    def __init__(self, module: Module) -> None:
        self._layer = [each for each in module.modules() if isinstance(each, Linear)][-1]
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
