"""A frozen model run in the types of its role: a reference, a rollout copy, a reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import GroupNorm, LayerNorm, Module, Parameter

from infrastructure.events.role_precision import FP32, RolePrecision
from infrastructure.training.distributed.modules import unwrapped, whole_tensor
from infrastructure.training.model_copy import copy_model
from infrastructure.training.precision.forward import PrecisionForward
from infrastructure.training.precision.frozen_halves import frozen_halves
from infrastructure.training.precision.master_weights import castable_parameters
from infrastructure.training.precision.outputs import cast_floats
from infrastructure.training.precision.precision import Precision

_NORMS = (LayerNorm, GroupNorm)


class RoleForward:
    """A frozen copy of a module that computes in the types of its role; implements `Forward`.

    Its weights are rounded to ``store``, its operations run under autocast to ``compute``, and
    what it returns is cast to ``out``. It is in evaluation mode and computes no gradients.
    Buffers, batch normalisations and modules kept in FP32 stay float32. Where ``store`` is a half
    type and ``compute`` is FP32, the weights are rounded but take the memory of float32.

    So do the weights of layer and group normalisations: on the CPU their kernels refuse half
    weights beside float32 inputs, which a model has that adds a buffer to its embeddings.

    The float32 weights are kept in the memory of the CPU while ``store`` is a half type, so that a
    rollback to FP32 restores them exactly.

    Frozen half weights of the module on *device* are not copied but shared: nobody trains them.

    Args:
        module: Module to copy, not sharded; its parameters are float32, or frozen in a half type.
        device: Where the copy computes.
        precision: Types of its role.

    Attributes:
        module: The copy. Calling it directly bypasses ``compute`` and ``out``.
        precision: The types in force.
    """

    __slots__ = ("_device", "_forward", "_weights", "module", "precision")

    def __init__(self, module: Module, device: torch.device, precision: RolePrecision) -> None:
        self._device = device
        module = unwrapped(module)
        there = torch.empty(0, device=device).device  # with its index
        shared = [half for half in frozen_halves(module).values() if half.device == there]
        self.module = copy_model(module, shared).to(device).requires_grad_(False).eval()
        self._weights: dict[Parameter, Tensor] = {}  # float32, on the CPU, of those in half
        self.precision = FP32
        self.set_precision(precision)

    def set_precision(self, precision: RolePrecision) -> None:
        """Compute in the types of *precision* from the next call on."""
        self._restore_float32()
        self.precision = precision
        self._forward = PrecisionForward(self.module, self._device, Precision(precision.compute))
        self._store()

    @torch.no_grad()
    def update(self, module: Module) -> None:
        """Take over the weights and buffers of *module*, which has the structure of the copy.

        With a sharded *module* every rank must call it.
        """
        self.load_state_dict(unwrapped(module).state_dict())

    def state_dict(self) -> dict[str, Tensor]:
        """Float32 weights and buffers; those of a half ``store`` are on the CPU.

        Loading them under any precision continues exactly.
        """
        state: dict[str, Tensor] = self.module.state_dict()
        parameters = dict(self.module.named_parameters(remove_duplicate=False))  # some are tied
        whole = {n: self._weights[p] for n, p in parameters.items() if p in self._weights}
        return {name: whole.get(name, value) for name, value in state.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            RuntimeError: It belongs to a module of another structure; the copy is unusable then.
        """
        for parameter in self._weights:  # overwritten, so the weights kept need not be moved back
            parameter.data = torch.empty_like(parameter, dtype=torch.float32)
        self._weights = {}
        self.module.load_state_dict({name: whole_tensor(tensor) for name, tensor in state.items()})
        self._store()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` of the copy; half tensors in its result become ``out``."""
        with torch.no_grad():
            return self._cast(self._forward(*args, **kwargs))

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the copy's method *name* in the same types."""
        with torch.no_grad():
            return self._cast(self._forward.method(name, *args, **kwargs))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"forward.{name} would bypass the precision of its role: call forward(...) or "
            f"forward.method({name!r}, ...)"
        )

    def _cast(self, result: Any) -> Any:
        if self.precision.out == "fp32":
            return result
        return cast_floats(result, Precision(self.precision.out).compute)

    def _store(self) -> None:
        if self.precision.store == "fp32":
            return
        store = Precision(self.precision.store).compute
        in_fp32 = self.precision.compute == "fp32"
        norms = {p for m in self.module.modules() if isinstance(m, _NORMS) for p in m.parameters()}
        for parameter in castable_parameters(self.module):
            self._weights[parameter] = parameter.detach().to("cpu", copy=True)
            rounded = parameter.data.to(store)
            parameter.data = rounded.float() if in_fp32 or parameter in norms else rounded

    def _restore_float32(self) -> None:
        for parameter, weights in self._weights.items():
            parameter.data = weights.to(self._device)
        self._weights = {}
