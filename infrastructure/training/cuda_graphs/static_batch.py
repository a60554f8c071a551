"""Batches in buffers with fixed addresses, from which a CUDA graph reads its inputs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

_PLAIN = (bool, int, float, str, bytes, torch.dtype, torch.device)


class UncopyableBatchError(TypeError):
    """A batch contains something that cannot be updated by copying tensors."""


def flatten(batch: Any, device: torch.device) -> tuple[Hashable, list[Tensor]]:
    """Separate the structure of *batch* from its tensors; equal structures can share buffers.

    Args:
        batch: Tensors, plain values, or nested dicts, tuples, lists and dataclasses of them.
        device: Device that every tensor must be on.

    Returns:
        The structure (containers, shapes, dtypes and plain values), and the tensors in a fixed
        order.

    Raises:
        UncopyableBatchError: *batch* contains anything else, or a tensor that is on another device,
            requires a gradient or is not strided.
    """
    tensors: list[Tensor] = []
    return _structure(batch, device, tensors), tensors


def _structure(value: Any, device: torch.device, tensors: list[Tensor]) -> Hashable:
    kind = type(value)
    if kind is Tensor:
        if value.device != device or value.requires_grad or value.layout != torch.strided:
            raise UncopyableBatchError(
                f"a tensor of the batch must be strided, on {device} and without requires_grad; "
                f"got {value.layout}, {value.device}, requires_grad={value.requires_grad}"
            )
        tensors.append(value)
        return value.shape, value.dtype
    if value is None or kind in _PLAIN:
        return kind, value
    if kind is dict:
        return dict, tuple((key, _structure(item, device, tensors)) for key, item in value.items())
    if kind in (tuple, list) or hasattr(value, "_fields"):
        return kind, tuple(_structure(item, device, tensors) for item in value)
    if is_dataclass(value):
        items = (getattr(value, field.name) for field in fields(value))
        return kind, tuple(_structure(item, device, tensors) for item in items)
    raise UncopyableBatchError(
        f"the batch holds a {kind.__name__}: use tensors, plain values, or dicts, tuples, lists "
        "and dataclasses of them"
    )


class StaticBatch:
    """A batch in fixed buffers, into which other batches of the same shape are copied.

    Args:
        like: Batch whose structure and values the buffers take first.
        tensors: Tensors of *like*, from `flatten`.

    Attributes:
        batch: Batch with the structure of *like*; its tensors keep their addresses.
    """

    def __init__(self, like: Any, tensors: Sequence[Tensor]) -> None:
        self._buffers = [torch.empty_like(tensor) for tensor in tensors]
        self.batch = _rebuild(like, iter(self._buffers))
        self.fill(tensors)

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy *tensors* into the buffers, without waiting for the device."""
        for buffer, tensor in zip(self._buffers, tensors, strict=True):
            buffer.copy_(tensor, non_blocking=True)


def _rebuild(value: Any, buffers: Iterator[Tensor]) -> Any:
    kind = type(value)
    if kind is Tensor:
        return next(buffers)
    if kind is dict:
        return {key: _rebuild(item, buffers) for key, item in value.items()}
    if hasattr(value, "_fields"):
        return kind(*(_rebuild(item, buffers) for item in value))
    if kind in (tuple, list):
        return kind(_rebuild(item, buffers) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _rebuild(getattr(value, f.name), buffers) for f in fields(value)}
        )
    return value
