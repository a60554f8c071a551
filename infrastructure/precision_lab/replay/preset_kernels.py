"""The roles of an experiment in the types of a preset, computed as a training computes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch.nn import Module

from infrastructure.events import Role
from infrastructure.events.role_precision import TRAINED, RolePrecisions
from infrastructure.precision_lab.kernels import ModelForward
from infrastructure.precision_lab.trained_forward import TrainedForward
from infrastructure.training.precision import Precision
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
            return TrainedForward(copy.deepcopy(module), device, precision, self._keep_fp32)
        return RoleForward(module, device, precision)

    def compute(self, role: Role, function: Callable[..., T], *values: Any) -> T:
        """``function(*values)`` in the types of *role*."""
        if role not in (Role.KL, Role.ADVANTAGE):
            return function(*values)
        types = self._precisions[role]
        names = (types.store, types.compute, types.out)
        store, compute, out = (Precision(name).compute for name in names)
        cast = [cast_floats(cast_floats(value, store), compute) for value in values]
        return cast_floats(function(*cast), out)
