"""The roles of an experiment in the types of a preset, computed as a training computes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.nn import Module

from infrastructure.events import Role
from infrastructure.events.role_precision import TRAINED, RolePrecision, RolePrecisions
from infrastructure.precision_lab.kernels import ModelForward
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.precision.master_weights import castable_parameters
from infrastructure.training.precision.outputs import cast_floats
from infrastructure.training.precision.roles import RoleForward

T = TypeVar("T")


class PresetKernels:
    """Computes each role in the types that *precisions* has for it.

    Frozen roles are `RoleForward`, as in every run. Trained ones are `TrainedForward`. What a role
    computes outside of its modules runs in the types of its inputs; KL and advantage, which have no
    modules, round their inputs to ``store``, compute in ``compute`` and return ``out``.

    Args:
        models: Models by role, float32; they do not change.
        precisions: Types of each role.
        keep_fp32: Modules of the trained roles that stay in FP32.
    """

    def __init__(
        self,
        models: Mapping[Role, Module],
        precisions: RolePrecisions,
        keep_fp32: Sequence[str] = (),
    ) -> None:
        self._models, self._precisions, self._keep_fp32 = models, precisions, keep_fp32

    def model(self, role: Role) -> ModelForward:
        """A copy of the model of *role* in its types."""
        return self.model_as(self._models[role], role)

    def model_as(self, module: Module, role: Role) -> ModelForward:
        """A copy of *module* in the types of *role*."""
        device, precision = next(module.parameters()).device, self._precisions[role]
        if role in TRAINED:
            return TrainedForward(module, device, precision, self._keep_fp32)
        return RoleForward(module, device, precision)

    def compute(self, role: Role, function: Callable[..., T], *values: Any) -> T:
        """``function(*values)`` in the types of *role*."""
        if role not in (Role.KL, Role.ADVANTAGE):
            return function(*values)
        types = self._precisions[role]
        store, compute, out = (Precision(each).compute for each in _names(types))
        cast = [cast_floats(cast_floats(value, store), compute) for value in values]
        return cast_floats(function(*cast), out)


class TrainedForward:
    """A copy of a trained module in the types of its role, with gradients.

    With float32 weights it is the trainer's own `PrecisionForward`. A half ``store``, which only
    presets for measurements have, makes the weights half leaves of the graph and calls the module
    without autocast, as a training without master weights does; the gradients are half then.

    Args:
        module: Module to copy, float32, in evaluation mode.
        device: Where it is.
        precision: Types of its role.
        keep_fp32: Modules that stay in FP32.

    Attributes:
        module: The copy, whose parameters have the type ``store``.
        precision: As given.
    """

    def __init__(
        self,
        module: Module,
        device: torch.device,
        precision: RolePrecision,
        keep_fp32: Sequence[str] = (),
    ) -> None:
        self.module, self.precision = copy.deepcopy(module), precision
        store, _, self._out = (Precision(each).compute for each in _names(precision))
        keep_in_fp32(self.module, keep_fp32, device)
        for parameter in castable_parameters(self.module):
            parameter.data = parameter.data.to(store)
        pure = precision.store != "fp32"
        compute = Precision.FP32 if pure else Precision(precision.compute)
        self._forward = PrecisionForward(self.module, device, compute)
        self._store = store

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``; floating-point arguments are cast to ``store``, results to ``out``."""
        args, kwargs = cast_floats((args, kwargs), self._store)
        return cast_floats(self._forward(*args, **kwargs), self._out)

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the module's method *name* in the same types."""
        args, kwargs = cast_floats((args, kwargs), self._store)
        return cast_floats(self._forward.method(name, *args, **kwargs), self._out)


def _names(precision: RolePrecision) -> tuple[str, str, str]:
    return precision.store, precision.compute, precision.out
