"""Norms of many tensors in one call of torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from infrastructure.torch_internals.guard import checked


def _one_by_one(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.linalg.vector_norm(tensor) for tensor in tensors)


def _works(norms_of: Callable[[list[Tensor]], tuple[Tensor, ...]]) -> bool:
    values = ([3.0, 4.0], [[float("inf")]])
    norms = norms_of(
        [torch.tensor(numbers, dtype=torch.float32, device="cpu") for numbers in values]
    )
    return [norm.item() for norm in norms] == [5.0, float("inf")]


norms: Callable[[list[Tensor]], tuple[Tensor, ...]] = checked("_foreach_norm", _works, _one_by_one)
"""L2 norm ``[]`` of each tensor; raises `NotImplementedError` if one is sparse."""
