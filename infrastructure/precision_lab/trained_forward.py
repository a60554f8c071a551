"""A module that is trained in the types of its role, also without FP32 weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Module

from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab.errors import LabError
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.precision.master_weights import castable_parameters
from infrastructure.training.precision.outputs import cast_floats


class TrainedForward:
    """Runs a module in the types of its role, with gradients; `RoleForward` is for frozen ones.

    With float32 weights it is the trainer's own `PrecisionForward`. A half ``store``, which only
    presets for measurements have, makes the weights half leaves of the graph and calls the module
    without autocast, as a training without master weights does; the gradients are half then.

    Args:
        module: Module with float32 parameters; they are cast in place.
        device: Where it is.
        precision: Types of its role.
        keep_fp32: Modules that stay in FP32.

    Attributes:
        module: The module, whose parameters have the type ``store``.
        precision: As given.

    Raises:
        LabError: ``store`` is a half type and ``compute`` another type.
    """

    def __init__(
        self,
        module: Module,
        device: torch.device,
        precision: RolePrecision,
        keep_fp32: Sequence[str] = (),
    ) -> None:
        pure = precision.store != "fp32"
        if pure and precision.compute != precision.store:
            raise LabError(
                f"{precision} would train weights stored in {precision.store} operations "
                f"in {precision.compute}, which refuse them: compute in the type they are stored in"
            )
        self.module, self.precision = module, precision
        self._store, self._out = (
            Precision(precision.store).compute,
            Precision(precision.out).compute,
        )
        keep_in_fp32(module, keep_fp32, device)
        for parameter in castable_parameters(module):
            parameter.data = parameter.data.to(self._store)
        compute = Precision.FP32 if pure else Precision(precision.compute)
        self._forward = PrecisionForward(module, device, compute)

    def under(self, name: str) -> PrecisionForward:
        """The same module in the precision *name*; its weights must be float32."""
        return self._forward.under(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``; floating-point arguments are cast to ``store``, results to ``out``."""
        args, kwargs = cast_floats((args, kwargs), self._store)
        return cast_floats(self._forward(*args, **kwargs), self._out)

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the module's method *name* in the same types."""
        args, kwargs = cast_floats((args, kwargs), self._store)
        return cast_floats(self._forward.method(name, *args, **kwargs), self._out)
