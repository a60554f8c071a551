"""Batches in buffers that stay in place, for CUDA graphs, which read from fixed addresses."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

_PLAIN = (bool, int, float, str, bytes, torch.dtype, torch.device)


class UncopyableBatchError(TypeError):
    """A batch holds something that copying tensors cannot update."""


def flatten(batch: Any, device: torch.device) -> tuple[Hashable, list[Tensor]]:
    """Split *batch* into what batches must have in common to share buffers, and its tensors.

    Args:
        batch: Tensors, plain values, or nested dicts, tuples, lists and dataclasses of them.
        device: Device of every tensor.

    Returns:
        The batch without the tensors' values: structure, shapes, dtypes and plain values; and the
        tensors in a fixed order.

    Raises:
        UncopyableBatchError: The batch holds anything else.
    """
    tensors: list[Tensor] = []
    return _shape(batch, device, tensors), tensors


def _shape(value: Any, device: torch.device, tensors: list[Tensor]) -> Hashable:
    kind = type(value)
    if kind is Tensor:
        if value.device != device or value.requires_grad or value.layout != torch.strided:
            raise UncopyableBatchError(
                f"the batch holds a tensor that is not plain data on {device} (device "
                f"{value.device}, requires_grad {value.requires_grad}, {value.layout})"
            )
        tensors.append(value)
        return value.shape, value.dtype
    if value is None or kind in _PLAIN:
        return kind, value
    if kind is dict:
        return dict, tuple((key, _shape(item, device, tensors)) for key, item in value.items())
    if kind in (tuple, list) or hasattr(value, "_fields"):
        return kind, tuple(_shape(item, device, tensors) for item in value)
    if is_dataclass(value):
        items = (getattr(value, field.name) for field in fields(value))
        return kind, tuple(_shape(item, device, tensors) for item in items)
    raise UncopyableBatchError(
        f"the batch holds a {kind.__name__}: use tensors, plain values, or dicts, tuples, lists "
        "and dataclasses of them"
    )


class StaticBatch:
    """A batch in fixed buffers, into which other batches of the same shape are copied.

    Args:
        like: First batch.
        tensors: Its tensors, from `flatten`.

    Attributes:
        batch: Batch with the structure of *like*, of tensors that never move.
    """

    def __init__(self, like: Any, tensors: Sequence[Tensor]) -> None:
        self._buffers = [torch.empty_like(tensor) for tensor in tensors]
        self.batch = _rebuilt(like, iter(self._buffers))
        self.fill(tensors)

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy *tensors* into the batch; does not wait."""
        for buffer, tensor in zip(self._buffers, tensors, strict=True):
            buffer.copy_(tensor, non_blocking=True)


def _rebuilt(value: Any, buffers: Iterator[Tensor]) -> Any:
    kind = type(value)
    if kind is Tensor:
        return next(buffers)
    if kind is dict:
        return {key: _rebuilt(item, buffers) for key, item in value.items()}
    if hasattr(value, "_fields"):
        return kind(*(_rebuilt(item, buffers) for item in value))
    if kind in (tuple, list):
        return kind(_rebuilt(item, buffers) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _rebuilt(getattr(value, f.name), buffers) for f in fields(value)}
        )
    return value
