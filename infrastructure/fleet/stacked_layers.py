"""Linear layers and activations on stacks, forward and backward, with the bits of layers alone.

Shapes: F members, B rows, I inputs and O outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from infrastructure.torch_internals import functions_with_out

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Activation:
    """An elementwise layer and its derivative, as torch's own.

    Attributes:
        forward: Function of the layer, its input, and memory for its output or None.
        backward: Function of the layer, the gradient of its output, its input or its output, and
            memory for the gradient of its input, which may be that of the gradient given.
        reads_output: Whether *backward* takes the layer's output; else it takes its input.
    """

    forward: Callable[[Any, Tensor, Tensor | None], Tensor]
    backward: Callable[[Any, Tensor, Tensor, Tensor], Tensor]
    reads_output: bool


ACTIVATIONS: Mapping[type[Module], _Activation] = {
    nn.ReLU: _Activation(
        lambda _, value, out: torch.clamp_min(value, 0.0, out=out),
        lambda _, gradient, output, into: _aten.threshold_backward.grad_input(
            gradient, output, 0, grad_input=into
        ),
        reads_output=True,
    ),
    nn.SiLU: _Activation(
        lambda _, value, out: functions_with_out.silu(value, out=out),
        lambda _, gradient, value, into: _aten.silu_backward.grad_input(
            gradient, value, grad_input=into
        ),
        reads_output=False,
    ),
    nn.Tanh: _Activation(
        lambda _, value, out: torch.tanh(value, out=out),
        lambda _, gradient, output, into: _aten.tanh_backward.grad_input(
            gradient, output, grad_input=into
        ),
        reads_output=True,
    ),
    nn.Sigmoid: _Activation(
        lambda _, value, out: torch.sigmoid(value, out=out),
        lambda _, gradient, output, into: _aten.sigmoid_backward.grad_input(
            gradient, output, grad_input=into
        ),
        reads_output=True,
    ),
    nn.GELU: _Activation(
        lambda layer, value, out: functions_with_out.gelu(
            value, approximate=layer.approximate, out=out
        ),
        lambda layer, gradient, value, into: _aten.gelu_backward.grad_input(
            gradient, value, approximate=layer.approximate, grad_input=into
        ),
        reads_output=False,
    ),
}
"""Activations that are computed on stacks, by type."""


@dataclass(slots=True)
class Memory:
    """Float32 tensors that each step writes over, so that none is allocated.

    Attributes:
        values: Inputs of the layers and the result; empty before the first step, as all others.
        of_parameters: Gradients of the parameters, the last first.
    """

    values: list[Tensor] = field(default_factory=list)
    of_parameters: list[Tensor] = field(default_factory=list)


def run_layers(
    layers: Sequence[Module],
    half: torch.dtype | None,
    value_FBI: Tensor,
    parameters: Sequence[Tensor],
    memory: Memory | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Apply *layers* to stacks; return the result, and what their derivative needs.

    Args:
        half: Dtype of the products; None for float32.
        memory: Memory for the layers' inputs and the result, in float32 only.
    """
    saved, stacks = list[Tensor](), iter(parameters)
    memory = Memory() if memory is None else memory
    outputs = iter(memory.values[1:])
    for layer in layers:
        out = next(outputs, None)
        if isinstance(layer, nn.Linear):
            weight_FOI = next(stacks)
            if half is not None:
                value_FBI, weight_FOI = value_FBI.to(half), weight_FOI.to(half)
            saved += (value_FBI, weight_FOI)
            weight_FIO = weight_FOI.transpose(1, 2)
            if layer.bias is None:
                value_FBI = torch.bmm(value_FBI, weight_FIO, out=out)
            else:
                bias_FO = next(stacks).to(value_FBI.dtype)
                value_FBI = torch.baddbmm(bias_FO.unsqueeze(1), value_FBI, weight_FIO, out=out)
        else:
            before = value_FBI
            value_FBI = ACTIVATIONS[type(layer)].forward(layer, value_FBI, out)
            saved += (before, value_FBI)
    memory.values = [*saved[::2], value_FBI]
    return value_FBI, saved


@torch.no_grad()
def differentiate_layers(
    layers: Sequence[Module],
    saved: Sequence[Tensor],
    dtype: torch.dtype,
    gradient_FBO: Tensor,
    *,
    of_input: bool = False,
    memory: Memory | None = None,
) -> list[Tensor]:
    """Gradients of the parameters and, if *of_input*, of the first layer's input before them.

    The operations are those of torch's own backward pass. Autograd's backward pass of ``baddbmm``
    would give the weights' gradient transposed.

    Args:
        memory: Memory for the gradients, in float32 only. Then *saved* is written over too.
    """
    gradients = list[Tensor]()
    given_FBO = gradient_FBO
    gradient_FBO = gradient_FBO.to(dtype)
    buffers = iter(memory.of_parameters if memory is not None else ())
    for i in range(len(layers) - 1, -1, -1):
        layer, first, second = layers[i], saved[2 * i], saved[2 * i + 1]
        if not isinstance(layer, nn.Linear):
            if i == 0 and not of_input:
                break
            kind = ACTIVATIONS[type(layer)]
            read = second if kind.reads_output else first
            gradient_FBO = gradient_FBO.to(read.dtype)
            of_caller = gradient_FBO is given_FBO
            into = torch.empty_like(gradient_FBO) if of_caller else gradient_FBO
            gradient_FBO = kind.backward(layer, gradient_FBO, read, into)
            continue
        if layer.bias is not None:
            gradients.append(torch.sum(gradient_FBO, 1, out=next(buffers, None)).float())
        weight_FOI = torch.bmm(gradient_FBO.transpose(1, 2), first, out=next(buffers, None))
        gradients.append(weight_FOI.float())
        if i > 0 or of_input:
            out = None if memory is None else _no_longer_needed(layers, saved, i)
            gradient_FBO = torch.bmm(gradient_FBO, second, out=out)
    if memory is not None:
        memory.of_parameters = gradients
    return [gradient_FBO, *reversed(gradients)] if of_input else gradients[::-1]


def _no_longer_needed(layers: Sequence[Module], saved: Sequence[Tensor], i: int) -> Tensor | None:
    """A tensor of the shape of layer *i*'s input that the derivatives before it do not read.

    The layer's input was read a moment ago, so it is in the cache.
    """
    before = ACTIVATIONS.get(type(layers[i - 1]))
    if before is None or not before.reads_output:
        return saved[2 * i]
    if i > 1 and not isinstance(layers[i - 2], nn.Linear):
        return None  # the activation's input is the output of another
    return saved[2 * i - 2]


class StackedLayers(torch.autograd.Function):
    """Layers on every slice, between others that are computed per member."""

    @staticmethod
    def forward(
        ctx: Any,
        layers: Sequence[Module],
        half: torch.dtype | None,
        value_FBI: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        """Return the result of `run_layers`."""
        result, saved = run_layers(layers, half, value_FBI, parameters)
        ctx.layers, ctx.dtypes = layers, (value_FBI.dtype, result.dtype)
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the value and the parameters."""
        of_input, (before, after) = ctx.needs_input_grad[2], ctx.dtypes
        layer_gradients = differentiate_layers(
            ctx.layers, ctx.saved_tensors, after, *gradients, of_input=of_input
        )
        input_gradient = layer_gradients.pop(0).to(before) if of_input else None
        return None, None, input_gradient, *layer_gradients
