"""Operations on many tensors in one call of torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from infrastructure.torch_internals.guard import checked


def _norm_each(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.linalg.vector_norm(tensor) for tensor in tensors)


def _norms_work(norms_of: Callable[[list[Tensor]], tuple[Tensor, ...]]) -> bool:
    values = ([3.0, 4.0], [[float("inf")]])
    tensors = [torch.tensor(value, dtype=torch.float32, device="cpu") for value in values]
    return [norm.item() for norm in norms_of(tensors)] == [5.0, float("inf")]


def _copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _copies_work(copy: Callable[[list[Tensor], list[Tensor]], None]) -> bool:
    sources = [torch.full((2, 2), 3.0, device="cpu").t(), torch.tensor(2**40, device="cpu")]
    targets = [torch.zeros(2, 2, device="cpu"), torch.tensor(0, device="cpu")]
    copy(targets, sources)
    return all(map(torch.equal, targets, sources))


norms: Callable[[list[Tensor]], tuple[Tensor, ...]] = checked(
    "_foreach_norm", _norms_work, _norm_each
)
"""L2 norm ``[]`` of each tensor; raises `NotImplementedError` if one is sparse."""

copy_all: Callable[[list[Tensor], list[Tensor]], None] = checked(
    "_foreach_copy_", _copies_work, _copy_each
)
"""Copy each tensor of the second list into the one at its place in the first, of its shape."""
