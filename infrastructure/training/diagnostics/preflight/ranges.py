"""The largest and smallest numbers that FP16 would have to hold.

One FP16 forward pass shows where half tensors arise: in which module, from which operation. FP32
passes then measure the values there, forward and backward, without overflow or underflow on the
way. The highest safe loss scale follows: ``2**floor(log2(65504 / max|gradient|))``
over the gradients that FP16 would hold, since a power of two scales FP16 numbers exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from infrastructure.torch_internals.autograd_nodes import output_dtypes
from infrastructure.torch_internals.dispatch_mode import TorchDispatchMode
from infrastructure.training.diagnostics.job_copy import JobCopy
from infrastructure.training.diagnostics.module_names import (
    NameNodes,
    RunningModules,
    floating_tensors,
    named_nodes,
)
from infrastructure.training.precision import Precision

FP16_MAX = 65504.0
_FLUSHED_EXPONENT = -25  # FP16 rounds 2**-25, half its smallest number, and all below it to zero
_LOWEST, _HIGHEST = -160, 130  # exponents of float32, with room

Place = tuple[str, str]  # module, operation


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRange:
    """Values that FP16 would hold inside one module.

    Attributes:
        activation: Largest magnitude in the forward pass.
        gradient: Largest magnitude in the backward pass, at loss scale 1.
        exponents: int64 ``[E]``: how many gradient elements have ``ceil(log2(|g|))`` of
            ``_LOWEST + index``; zeros are not counted.
    """

    activation: float
    gradient: float
    exponents: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """Ranges of values in the modules of a model.

    Attributes:
        modules: Ranges by qualified name and class; only modules in which FP16 would compute.
        loss_is_finite: Whether FP32's loss and gradients were finite in every batch.
    """

    modules: dict[str, ModuleRange]
    loss_is_finite: bool

    @property
    def largest_safe_scale(self) -> float | None:
        """The highest power of two at which no FP16 gradient overflowed; None without any."""
        gradient = max((module.gradient for module in self.modules.values()), default=0.0)
        if not 0.0 < gradient < math.inf:
            return None
        _, exponent = math.frexp(FP16_MAX / gradient)  # in [0.5, 1) * 2**exponent
        return math.ldexp(1.0, exponent - 1)

    def underflow(self, scale: float, module: str | None = None) -> float:
        """Fraction of gradient elements flushed to zero at *scale*, a power of two.

        Args:
            module: Module to count; None for all.
        """
        chosen = self.modules.values() if module is None else [self.modules[module]]
        exponents = sum(
            (module_range.exponents for module_range in chosen), torch.zeros(1, dtype=torch.int64)
        )
        highest_flushed = _FLUSHED_EXPONENT - round(math.log2(scale))
        flushed = exponents[: max(0, highest_flushed - _LOWEST + 1)].sum().item()
        return flushed / max(1, int(exponents.sum().item()))


@dataclass
class _Extremes:
    """Largest values and exponents seen at one place."""

    activation: Tensor
    gradient: Tensor
    exponents: Tensor


@dataclass
class _Record:
    """Places where half tensors arise, and FP32's values at every place."""

    device: torch.device
    half_forward: set[Place] = field(default_factory=set)
    half_backward: set[Place] = field(default_factory=set)
    forward: dict[Place, _Extremes] = field(default_factory=dict)
    backward: dict[Place, _Extremes] = field(default_factory=dict)

    def at(self, places: dict[Place, _Extremes], place: Place) -> _Extremes:
        if place not in places:
            zero = torch.zeros((), device=self.device)
            bins = torch.zeros(_HIGHEST - _LOWEST + 1, dtype=torch.int64, device=self.device)
            places[place] = _Extremes(zero, zero, bins)
        return places[place]

    def modules(self) -> dict[str, ModuleRange]:
        by_module: dict[str, list[_Extremes]] = {}
        for half, seen in (
            (self.half_forward, self.forward),
            (self.half_backward, self.backward),
        ):
            # Where FP16 takes another kernel than FP32, every operation of the module counts.
            other_kernel = {place[0] for place in half if place not in seen}
            for place, values in seen.items():
                if place in half or place[0] in other_kernel:
                    by_module.setdefault(place[0], []).append(values)
        return {
            module: ModuleRange(
                activation=max(extremes.activation.item() for extremes in values),
                gradient=max(extremes.gradient.item() for extremes in values),
                exponents=torch.stack([extremes.exponents for extremes in values]).sum(0).cpu(),
            )
            for module, values in by_module.items()
        }


def measure_ranges(job: JobCopy) -> Ranges:
    """Run one FP16 forward pass, then an FP32 forward and backward pass for each batch.

    Raises:
        RuntimeError: The model cannot run under FP16 on this device.
    """
    record = _Record(job.device)
    model = job.model()
    running = RunningModules(model)
    with NameNodes(running), _HalfOperations(running, record.half_forward):
        loss = job.loss(model, job.batches[0], Precision.FP16)
    for node, module in named_nodes(loss):
        is_half = torch.float16 in output_dtypes(node)
        if is_half and node.name() != "ToCopyBackward0":  # a cast
            record.half_backward.add((module, node.name()))
    del loss
    finite = True
    for batch in job.batches:
        with NameNodes(running), _Magnitudes(running, record):
            loss = job.loss(model, batch, Precision.FP32)
        leaves = _hook_backward(loss, record)
        loss.backward()
        for place, parameters in leaves.items():
            _record_gradients(record, place, [parameter.grad for parameter in parameters])
        values = [loss, *(p.grad for p in model.parameters() if p.grad is not None)]
        finite &= all(bool(value.isfinite().all()) for value in values)
        model.zero_grad(set_to_none=True)
    return Ranges(modules=record.modules(), loss_is_finite=finite)


class _HalfOperations(TorchDispatchMode):
    """Collects the places where an operation returns a half tensor."""

    def __init__(self, running: RunningModules, places: set[Place]) -> None:
        super().__init__()
        self._running, self._places = running, places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        half = any(tensor.dtype == torch.float16 for tensor in floating_tensors(result))
        if half and not str(func).startswith("aten._to_copy"):  # a cast: FP32 has none
            self._places.add((str(self._running), str(func)))
        return result


class _Magnitudes(TorchDispatchMode):
    """Records the largest magnitude that goes into and comes out of each operation."""

    def __init__(self, running: RunningModules, record: _Record) -> None:
        super().__init__()
        self._running, self._record = running, record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        seen = self._record.at(self._record.forward, (str(self._running), str(func)))
        for tensor in (*floating_tensors(args), *floating_tensors(result)):
            seen.activation = torch.maximum(seen.activation, _magnitude(tensor.detach()))
        return result


def _hook_backward(loss: Tensor, record: _Record) -> dict[Place, set[Tensor]]:
    """Record gradients as they are computed; return the parameters used at each place."""
    leaves: dict[Place, set[Tensor]] = {}
    for node, module in named_nodes(loss):
        place = (module, node.name())
        for following, _ in node.next_functions:
            if following is not None and hasattr(following, "variable"):
                leaves.setdefault(place, set()).add(following.variable)
        node.register_prehook(partial(_record_gradients, record, place))
        node.register_hook(partial(_record_largest, record, place))
    return leaves


def _record_largest(
    record: _Record, place: Place, gradients: Iterable[Tensor | None], _: object
) -> None:
    """Record no exponents: each gradient is an output of another node, or a parameter's."""
    seen = record.at(record.backward, place)
    for gradient in floating_tensors(gradients):
        seen.gradient = torch.maximum(seen.gradient, _magnitude(gradient))


def _record_gradients(record: _Record, place: Place, gradients: Iterable[Tensor | None]) -> None:
    seen = record.at(record.backward, place)
    for gradient in floating_tensors(gradients):
        seen.gradient = torch.maximum(seen.gradient, _magnitude(gradient))
        seen.exponents += _exponents(gradient)


def _exponents(gradient: Tensor) -> Tensor:
    """Histogram of ``ceil(log2(|g|))`` over the elements that are neither zero nor infinite."""
    magnitude = gradient.detach().float().abs()
    magnitude = magnitude[(magnitude > 0.0) & magnitude.isfinite()]
    mantissa, exponent = torch.frexp(magnitude)  # magnitude = mantissa * 2**exponent, in [0.5, 1)
    ceiling = exponent - (mantissa == 0.5).int()
    size = _HIGHEST - _LOWEST + 1
    return torch.bincount((ceiling - _LOWEST).clamp(0, size - 1), minlength=size)


def _magnitude(tensor: Tensor) -> Tensor:
    """Largest magnitude, float32 ``[]``; zero if *tensor* is empty."""
    if tensor.numel() == 0:
        return torch.zeros((), device=tensor.device)
    return tensor.abs().amax().float()
