"""Plain perceptrons, ``nn.Sequential`` of linear layers and activations, for several members.

Shapes: F members, B rows, I inputs and O outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import Module, functional

from infrastructure.fleet.agreement import (
    ALIGNMENT_BYTES,
    agrees,
    autocast_dtype,
    elementwise_agrees,
    is_aligned,
)
from infrastructure.fleet.forms import Call, NotStackableError, Outputs, dropout

_EXACT = (nn.Identity, nn.ReLU, nn.LeakyReLU)  # exact, so that vector and remainder agree
_ELEMENTWISE = (*_EXACT, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Softplus, nn.Mish)
_LAYERS = (*_ELEMENTWISE, nn.Linear, nn.Dropout)

_Value: TypeAlias = "Tensor | list[Tensor]"  # a stack [F, B, O], or one tensor [B, O] per member


class SequentialForm:
    """`StackedForm` of an ``nn.Sequential``.

    Args:
        model: One of the members' models.

    Raises:
        NotStackableError: A layer has no stacked form.
    """

    def __init__(self, model: nn.Sequential) -> None:
        for name, layer in model.named_children():
            if type(layer) not in _LAYERS:
                kind, known = type(layer).__name__, ", ".join(each.__name__ for each in _LAYERS)
                raise NotStackableError(
                    f"layer {name!r} is a {kind}, and a fleet can compute {known} together"
                )
            if getattr(layer, "inplace", False):
                raise NotStackableError(f"layer {name!r} works in place: build it without inplace")
        self._layers = dict(model.named_children())
        self._steps = [(n, layer, layer.extra_repr()) for n, layer in self._layers.items()]
        self._dropouts = [n for n, layer in self._steps_of(nn.Dropout)]

    def _steps_of(self, kind: type[Module]) -> list[tuple[str, Module]]:
        return [(n, layer) for n, layer in self._layers.items() if isinstance(layer, kind)]

    @property
    def key(self) -> Hashable:
        """Types and settings of all layers."""
        return ("sequential", *((n, type(layer), text) for n, layer, text in self._steps))

    @property
    def draws(self) -> bool:
        """Whether the network has dropout."""
        return bool(self._dropouts)

    def signature(self, model: Module, arguments: tuple[Any, ...]) -> Hashable:
        """Shape of the rows, and which dropouts are on."""
        if len(arguments) != 1 or not isinstance(arguments[0], Tensor):
            raise NotStackableError("its model is called with something else than one tensor")
        rows = arguments[0]
        if rows.dim() != 2 or rows.dtype != torch.float32 or rows.requires_grad:
            raise NotStackableError(
                "the input of its model is not a float32 tensor [rows, features] without gradient"
            )
        own_memory = rows.is_contiguous() and rows.data_ptr() % ALIGNMENT_BYTES == 0
        mode = tuple(model.get_submodule(name).training for name in self._dropouts)
        return (rows.shape, own_memory, mode)

    def forward(self, parameters: Mapping[str, Tensor], calls: Sequence[Call]) -> Outputs:
        """Return ``[B, O]`` float32 for every call."""
        rows = [cast("Tensor", call.arguments[0]) for call in calls]
        value: _Value = rows
        if rows[0].data_ptr() % ALIGNMENT_BYTES == 0 and is_aligned(rows[0].numel()):
            value = torch.stack(rows)
        for name, layer, _ in self._steps:
            if isinstance(layer, nn.Linear):
                bias = parameters.get(f"{name}.bias")
                value = _linear(value, parameters[f"{name}.weight"], bias)
            elif isinstance(layer, nn.Dropout):
                if layer.training and layer.p > 0.0:
                    pairs = zip(_unstacked(value), calls, strict=True)
                    value = _stacked([dropout(v, layer.p, call.generator) for v, call in pairs])
            else:
                value = _elementwise(layer, value)
        raw = value.float() if isinstance(value, Tensor) else [each.float() for each in value]
        return Outputs(raw=raw, structure=_itself)


def _itself(output: Tensor) -> Tensor:
    return output


def _unstacked(value: _Value) -> list[Tensor]:
    return list(value.unbind()) if isinstance(value, Tensor) else value


def _stacked(values: list[Tensor]) -> _Value:
    if is_aligned(values[0].numel(), values[0].dtype):
        return torch.stack(values)
    return values


def _elementwise(layer: Module, value: _Value) -> _Value:
    if isinstance(value, Tensor) and (
        isinstance(layer, _EXACT) or elementwise_agrees(value[0].numel(), len(value), value.dtype)
    ):
        return cast("Tensor", layer(value))
    return _stacked([layer(each) for each in _unstacked(value)])


def _linear(value: _Value, weight_FOI: Tensor, bias_FO: Tensor | None) -> _Value:
    if isinstance(value, Tensor) and _linear_agrees(value, weight_FOI, bias_FO):
        return _stacked_linear(value, weight_FOI, bias_FO)
    members = len(weight_FOI)
    weights = weight_FOI.unbind()
    biases = [None] * members if bias_FO is None else list(bias_FO.unbind())
    values = [
        functional.linear(x, w, b)
        for x, w, b in zip(_unstacked(value), weights, biases, strict=True)
    ]
    return _stacked(values)


def _linear_agrees(input_FBI: Tensor, weight_FOI: Tensor, bias_FO: Tensor | None) -> bool:
    """Whether stacked products give the bits of each member's own."""
    members, fan_out, fan_in = weight_FOI.shape
    rows, device = input_FBI.shape[1], input_FBI.device
    dtype = autocast_dtype(device) or torch.float32
    if not all(is_aligned(n, dtype) for n in (rows * fan_in, fan_out * fan_in, rows * fan_out)):
        return False
    shapes: list[tuple[int, ...]] = [(rows, fan_in), (fan_out, fan_in)]
    if bias_FO is not None:
        shapes.append((fan_out,))
    return agrees(_stacked_linear, functional.linear, shapes, members=members, device=device)


def _stacked_linear(input_FBI: Tensor, weight_FOI: Tensor, bias_FO: Tensor | None = None) -> Tensor:
    half = autocast_dtype(input_FBI.device)
    if half is not None:
        input_FBI, weight_FOI = input_FBI.to(half), weight_FOI.to(half)
        bias_FO = None if bias_FO is None else bias_FO.to(half)
    result: Tensor = _StackedLinear.apply(input_FBI, weight_FOI, bias_FO)
    return result


class _StackedLinear(torch.autograd.Function):
    """``functional.linear`` for every slice, with the products of its own backward pass.

    Autograd's backward pass of ``baddbmm`` would give the weights' gradient transposed.
    """

    @staticmethod
    def forward(ctx: Any, input_FBI: Tensor, weight_FOI: Tensor, bias_FO: Tensor | None) -> Tensor:
        ctx.save_for_backward(input_FBI, weight_FOI)
        weight_FIO = weight_FOI.transpose(1, 2)
        if bias_FO is None:
            return torch.bmm(input_FBI, weight_FIO)
        return torch.baddbmm(bias_FO.unsqueeze(1), input_FBI, weight_FIO)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_FBO,) = gradients
        input_FBI, weight_FOI = ctx.saved_tensors
        needs_input, _, needs_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient_FBO, weight_FOI) if needs_input else None,
            torch.bmm(gradient_FBO.transpose(1, 2), input_FBI),
            gradient_FBO.sum(1) if needs_bias else None,
        )
