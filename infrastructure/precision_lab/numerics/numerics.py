"""Half precision that can be switched off place by place, with the real kernels of the half type.

`Numerics` intercepts every call of a torch function and chooses the type it computes in. The casts
are part of the graph, so the backward pass runs in the types of the forward pass. The weights of
the models stay float32 and are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from infrastructure.events import Role
from infrastructure.events.role_precision import FP32, RolePrecision
from infrastructure.precision_lab.numerics.call import HALF, Call, tensors_in
from infrastructure.precision_lab.numerics.functions import Kind
from infrastructure.precision_lab.numerics.pure import run_pure, widened
from infrastructure.precision_lab.places import Operation, Place
from infrastructure.torch_internals.backward_pass import in_own_backward
from infrastructure.torch_internals.torch_function import without_torch_function
from infrastructure.training.precision import Precision
from infrastructure.training.precision.outputs import to_float32


class Numerics(TorchFunctionMode):
    """Runs each role in its types, except for the places that are in FP32.

    Enter it, and give `role` to an experiment as its region::

        with Numerics(experiment.models, preset, fp32=[Place.parse("policy:lm_head:compute")]) as n:
            outcome = experiment.run(n.role)

    A role computes in one of two ways:

    - *Autocast*, if it has a model whose weights are stored in FP32: torch decides which operations
      compute in half precision, exactly as it does for the trainer.
    - *Pure* otherwise: parameters and buffers are rounded, and every operation takes and gives the
      half type, as after ``model.half()``. Values that the role's own code casts to float32 stay
      float32 until it casts them back, but matrix products lower them.

    What the root module of a role returns is cast to ``out``. An operation at a place in FP32 takes
    its inputs and gives its result in float32. The next place in half precision rounds them, under
    autocast by torch's rules and in a pure role always. Outside of any role everything is float32.

    Args:
        models: Models by role, float32. KL and advantages have none.
        precisions: Types of each role; those left out are FP32. A preset is such a mapping.
        fp32: Places in FP32.

    Attributes:
        last_place: Place that computed last, in any type. After an error: where it was raised.
    """

    def __init__(
        self,
        models: Mapping[Role, Module],
        precisions: Mapping[Role, RolePrecision],
        fp32: Collection[Place] = (),
    ) -> None:
        super().__init__()
        self._models = models
        self._precisions = {role: precisions.get(role, FP32) for role in Role}
        self._fp32 = frozenset(fp32)
        self._names: dict[Module, dict[Role, str]] = {}
        self._stored_at: dict[int, Place] = {}  # by the id of a parameter or buffer
        for role, model in models.items():
            for name, module in model.named_modules():
                self._names.setdefault(module, {})[role] = name
                place = Place(role, name, Operation.STORAGE)
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    if tensor.dtype == torch.float32:
                        self._stored_at.setdefault(id(tensor), place)
        self._running: list[tuple[Role, str]] = []  # roles and modules, the innermost last
        self._rounded: dict[tuple[int, bool], Tensor] = {}  # parameters and buffers of a region
        self._places: dict[Place, None] = {}
        self.last_place: Place | None = None
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for module, names in self._names.items():
            enter, leave = self._hooks_of(names)
            self._hooks.append(module.register_forward_pre_hook(enter))
            self._hooks.append(module.register_forward_hook(leave, always_call=True))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def places(self) -> list[Place]:
        """Places that stored or computed something in half precision, in order of appearance."""
        return list(self._places)

    @contextmanager
    def role(self, role: Role) -> Iterator[None]:
        """Region in which *role* computes; what runs outside of any module is the role's own."""
        half = Precision(self._precisions[role].compute).compute
        autocast = self._uses_autocast(role)
        device_type = _device_type(self._models.get(role))
        with torch.autocast(
            device_type, dtype=half if autocast else torch.bfloat16, enabled=autocast
        ):
            self._running.append((role, ""))
            try:
                yield
            finally:
                self._running.pop()
                self._rounded.clear()

    def _uses_autocast(self, role: Role) -> bool:
        types = self._precisions[role]
        return types.compute != "fp32" and types.store == "fp32" and role in self._models

    def _hooks_of(self, names: Mapping[Role, str]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def enter(*_: object) -> None:
            if self._running:
                role = self._running[-1][0]
                role = role if role in names else next(iter(names))
                self._running.append((role, names[role]))

        def leave(module: Module, _: object, result: Any) -> Any:
            if not self._running:
                return result
            role, _name = self._running.pop()
            if module is not self._models[role] or self._precisions[role].out != "fp32":
                return result
            with without_torch_function():
                return widened(to_float32(result), role)

        return enter, leave

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        call = Call(func, args, kwargs or {})
        if call.kind is Kind.OPAQUE or in_own_backward():
            return call.run()
        if not self._running:
            return _run_fp32(call)
        role, module = self._running[-1]
        precision = self._precisions[role]
        if precision.store != "fp32" and call.kind is not Kind.DTYPE:
            call = call.replaced(self._stored)
        if precision.compute == "fp32":
            return _run_fp32(call)
        operation = Operation.REDUCTION if call.kind is Kind.REDUCTION else Operation.COMPUTE
        place = Place(role, module, operation)
        self.last_place = place
        in_fp32 = place in self._fp32
        if self._uses_autocast(role):
            result, narrow = self._run_autocast(call, role, in_fp32=in_fp32)
        else:
            half = Precision(precision.compute).compute
            result, narrow = run_pure(call, role, half, in_fp32=in_fp32)
        if narrow:
            self._places[place] = None
        return result

    def _run_autocast(self, call: Call, role: Role, *, in_fp32: bool) -> tuple[Any, bool]:
        """Carry out *call*; the region has switched autocast on."""
        if in_fp32:
            if call.kind is Kind.CAST and (result := call.run()).dtype in HALF:
                return call.args[0].to(result.device).float(), False
            with torch.autocast(_device_type(self._models[role]), enabled=False):
                return _run_fp32(call), False
        result = call.run()
        computes = call.kind in (Kind.COMPUTE, Kind.REDUCTION)
        every = tensors_in((result, call.args)) if computes else ()
        return result, any(tensor.dtype in HALF for tensor in every)

    def _stored(self, tensor: Tensor) -> Tensor:
        """The parameter or buffer *tensor* as its role stores it; any other tensor as it is."""
        place = self._stored_at.get(id(tensor))
        if place is None or place in self._fp32 or self._precisions[place.role].store == "fp32":
            return tensor
        self._places[place] = None
        key = (id(tensor), torch.is_grad_enabled())
        if key not in self._rounded:
            store = Precision(self._precisions[place.role].store).compute
            self._rounded[key] = tensor.to(store)
        return self._rounded[key]


def _run_fp32(call: Call) -> Any:
    """Carry out *call* with half inputs cast to float32."""
    computes = call.kind in (Kind.COMPUTE, Kind.REDUCTION)
    return call.run_in(torch.float32) if computes else call.run()


def _device_type(model: Module | None) -> str:
    """Type of the device that *model* is on; a computation without a model may be anywhere."""
    parameter = next(iter(model.parameters()), None) if model is not None else None
    return "cpu" if parameter is None else parameter.device.type
