"""Plain perceptrons, ``nn.Sequential`` of linear layers and activations, for several members.

Shapes: F members, B rows, I inputs and O outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from infrastructure.fleet.stacked_layers import (
    ACTIVATIONS,
    Memory,
    StackedLayers,
    differentiate_layers,
    run_layers,
)

_EXACT = (nn.Identity, nn.ReLU, nn.LeakyReLU)  # exact, so that vector and remainder agree
_ELEMENTWISE = (*_EXACT, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Softplus, nn.Mish)
_LAYERS = (*_ELEMENTWISE, nn.Linear, nn.Dropout)

_Value: TypeAlias = "Tensor | list[Tensor]"  # a stack [F, B, O], or one tensor [B, O] per member


@dataclass(slots=True)
class _Block:
    """Layers that are computed as one on stacks, or one layer that is computed per member."""

    layers: list[Module]
    names: list[str]  # of their parameters
    is_stacked: bool


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
                kind = type(layer).__name__
                known = ", ".join(layer_type.__name__ for layer_type in _LAYERS)
                raise NotStackableError(
                    f"layer {name!r} is a {kind}, and a fleet can compute {known} together"
                )
            if getattr(layer, "inplace", False):
                raise NotStackableError(f"layer {name!r} works in place: build it without inplace")
        self._layers = dict(model.named_children())
        self._steps = [(n, layer, layer.extra_repr()) for n, layer in self._layers.items()]
        self._dropouts = [n for n, layer in self._steps_of(nn.Dropout)]
        self._divisions: dict[Hashable, list[_Block]] = {}
        self._memory_of: _Block | None = None
        self._memory = Memory()

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
        names = self._dropouts
        mode = tuple(model.get_submodule(name).training for name in names) if names else ()
        return (rows.shape, own_memory, mode)

    def forward(self, parameters: Mapping[str, Tensor], calls: Sequence[Call]) -> Outputs:
        """Return ``[B, O]`` float32 for every call."""
        rows = [cast("Tensor", call.arguments[0]) for call in calls]
        is_stacked = rows[0].data_ptr() % ALIGNMENT_BYTES == 0 and is_aligned(rows[0].numel())
        half = autocast_dtype(rows[0].device)
        blocks = self._blocks(rows[0], len(rows), half, is_stacked=is_stacked)
        if len(blocks) == 1 and blocks[0].is_stacked:
            [block] = blocks
            return self._in_one_pass(block, half, rows, [parameters[n] for n in block.names])
        value: _Value = torch.stack(rows) if is_stacked else rows
        for block in blocks:
            block_parameters = [parameters[name] for name in block.names]
            if block.is_stacked:
                value = cast(
                    "Tensor", StackedLayers.apply(block.layers, half, value, *block_parameters)
                )
            else:
                value = _of_each(block.layers[0], value, block_parameters, calls)
        raw = value.float() if isinstance(value, Tensor) else [row.float() for row in value]
        return Outputs(raw=raw, structure=_itself)

    @torch.no_grad()
    def _in_one_pass(
        self,
        block: _Block,
        half: torch.dtype | None,
        rows: list[Tensor],
        parameters: Sequence[Tensor],
    ) -> Outputs:
        """Compute layers that are all stacked, without autograd.

        In float32 a step writes to the memory of the step before it, if their shapes are equal.
        """
        if half is not None or self._memory_of is not block:
            self._memory_of, self._memory = (block if half is None else None), Memory()
        memory = self._memory if half is None else None
        values = self._memory.values
        value_FBI = torch.stack(rows, out=values[0] if values else None)
        result, saved = run_layers(block.layers, half, value_FBI, parameters, memory)
        backward = partial(differentiate_layers, block.layers, saved, result.dtype, memory=memory)
        return Outputs(raw=result.float(), structure=_itself, backward=backward)

    def _blocks(
        self, rows: Tensor, members: int, half: torch.dtype | None, *, is_stacked: bool
    ) -> list[_Block]:
        """Divide the layers into those to compute on stacks and those to compute per member."""
        mode = [layer.training for _, layer in self._steps_of(nn.Dropout)]
        threads = torch.get_num_threads()
        case = (rows.shape, members, half, rows.device, threads, is_stacked, *mode)
        if case not in self._divisions:
            self._divisions[case] = self._divide(rows, members, half, is_stacked=is_stacked)
        return self._divisions[case]

    def _divide(
        self, rows: Tensor, members: int, half: torch.dtype | None, *, is_stacked: bool
    ) -> list[_Block]:
        (count, width), device = rows.shape, rows.device
        dtype = torch.float32
        blocks: list[_Block] = []
        for name, layer, _ in self._steps:
            agrees_stacked = False
            if isinstance(layer, nn.Dropout) and not (layer.training and layer.p > 0.0):
                continue
            if isinstance(layer, nn.Identity):
                continue
            if isinstance(layer, nn.Linear):
                agrees_stacked = layer.in_features == width and _linear_agrees(
                    layer, count, members, half, device
                )
                width, dtype = layer.out_features, half or dtype
            elif type(layer) in ACTIVATIONS:
                agrees_stacked = isinstance(layer, _EXACT) or elementwise_agrees(
                    count * width, members, dtype
                )
            names = [f"{name}.{parameter_name}" for parameter_name, _ in layer.named_parameters()]
            if not (is_stacked and agrees_stacked):
                blocks.append(_Block([layer], names, is_stacked=False))
                is_stacked = is_aligned(count * width, dtype)
            elif blocks and blocks[-1].is_stacked:
                blocks[-1].layers.append(layer)
                blocks[-1].names.extend(names)
            else:
                blocks.append(_Block([layer], names, is_stacked=True))
        return blocks


def _itself(output: Tensor) -> Tensor:
    return output


def _unstacked(value: _Value) -> list[Tensor]:
    return list(value.unbind()) if isinstance(value, Tensor) else value


def _stacked(values: list[Tensor]) -> _Value:
    if is_aligned(values[0].numel(), values[0].dtype):
        return torch.stack(values)
    return values


def _of_each(
    layer: Module, value: _Value, parameters: Sequence[Tensor], calls: Sequence[Call]
) -> _Value:
    """Apply *layer* to each member's own tensor, or to the stack where it is elementwise."""
    if isinstance(layer, nn.Linear):
        member_weights = zip(*(parameter.unbind() for parameter in parameters), strict=True)
        pairs = zip(_unstacked(value), member_weights, strict=True)
        return _stacked([functional.linear(row, *weights) for row, weights in pairs])
    if isinstance(layer, nn.Dropout):
        drops = zip(_unstacked(value), calls, strict=True)
        return _stacked([dropout(row, layer.p, call.generator) for row, call in drops])
    if isinstance(value, Tensor) and (
        isinstance(layer, _EXACT) or elementwise_agrees(value[0].numel(), len(value), value.dtype)
    ):
        return cast("Tensor", layer(value))
    return _stacked([layer(row) for row in _unstacked(value)])


def _linear_agrees(
    layer: nn.Linear, rows: int, members: int, half: torch.dtype | None, device: torch.device
) -> bool:
    """Whether stacked products give the bits of each member's own."""
    fan_in, fan_out, dtype = layer.in_features, layer.out_features, half or torch.float32
    if not all(is_aligned(n, dtype) for n in (rows * fan_in, fan_out * fan_in, rows * fan_out)):
        return False
    shapes = [(rows, fan_in), *(parameter.shape for parameter in layer.parameters())]
    return agrees(_stacked_linear, functional.linear, shapes, members=members, device=device)


def _stacked_linear(input_FBI: Tensor, weight_FOI: Tensor, *bias_FO: Tensor) -> Tensor:
    _, fan_out, fan_in = weight_FOI.shape
    layer = nn.Linear(fan_in, fan_out, bias=bool(bias_FO), device="meta")
    half = autocast_dtype(input_FBI.device)
    result: Tensor = StackedLayers.apply([layer], half, input_FBI, weight_FOI, *bias_FO)
    return result
