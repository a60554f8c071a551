"""The parameters of all members, each a slice of one stack.

A member's model keeps its own parameters as objects; only their memory is a slice. So evaluation,
checkpoints and a step alone work on a member as if it were not in a fleet.

Shapes: F members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.dlpack import from_dlpack

from infrastructure.fleet.agreement import ALIGNMENT_BYTES
from infrastructure.training import FP16Trainer

_PADDING = ALIGNMENT_BYTES // torch.float32.itemsize


class StackedParameters:
    """Moves the parameters of *trainers* into stacks, one for each parameter.

    Args:
        trainers: Trainers whose models have the same parameters.

    Attributes:
        names: Names of the parameters.
        stacks: float32 ``[F, *shape]`` each; every slice is aligned, rows may be padded.
        slices: ``slices[k][i]`` is parameter k of member i; see `own_storages`.
    """

    def __init__(self, trainers: Sequence[FP16Trainer]) -> None:
        self._trainers = trainers
        self._own = [list(trainer.model.parameters()) for trainer in trainers]
        self._all = list(chain.from_iterable(self._own))
        self.names = [name for name, _ in trainers[0].model.named_parameters()]
        self.stacks = [_aligned_stack(len(trainers), p) for p in self._own[0]]
        self.slices = [own_storages(stack) for stack in self.stacks]
        rows = zip(*self.slices, strict=True)
        self._addresses = [[tensor.data_ptr() for tensor in row] for row in rows]
        self._all_addresses = list(chain.from_iterable(self._addresses))
        self._leaves = [stack.detach().requires_grad_() for stack in self.stacks]
        self.adopt(range(len(trainers)))

    def adopt(self, chosen: Sequence[int]) -> None:
        """Move to the stacks what of the *chosen* is not there, such as weights set by ``.data``.

        Args:
            chosen: Members by their place in the fleet, all or some.
        """
        everybody = len(chosen) == len(self._trainers)
        if everybody and list(map(Tensor.data_ptr, self._all)) == self._all_addresses:
            return
        for i in chosen:
            places = zip(self._own[i], self.slices, self._addresses[i], strict=True)
            for parameter, slices, address in places:
                if parameter.data_ptr() != address:
                    parameter.data = slices[i].copy_(parameter.data)

    def release(self, i: int) -> None:
        """Give member *i* memory of its own."""
        for parameter in self._own[i]:
            parameter.data = parameter.data.clone()

    def own(self, i: int) -> list[Parameter]:
        """Parameters of member *i*."""
        return self._own[i]

    def drop_gradients(self, i: int) -> None:
        """Drop what a backward pass left in member *i*'s own parameters."""
        for parameter in self._own[i]:
            parameter.grad = None

    def leaves(self, chosen: Sequence[int]) -> list[Tensor]:
        """Stacks of the *chosen* members that require gradients, in their order.

        The whole fleet computes on the stacks themselves, a part of it on a copy.
        """
        if len(chosen) == len(self._trainers):
            return self._leaves
        rows = torch.tensor(chosen, device=self.stacks[0].device)
        return [
            _aligned_stack(len(chosen), stack[0]).copy_(stack[rows]).requires_grad_()
            for stack in self.stacks
        ]


def own_storages(stack: Tensor) -> list[Tensor]:
    """The slices of *stack*, each with a storage of its own over the same memory.

    ``torch.save`` writes whole storages: of a view, it would write all members.
    """
    return [from_dlpack(row) for row in stack.unbind()]


def _aligned_stack(members: int, like: Tensor) -> Tensor:
    """Return an empty stack ``[members, *like.shape]`` whose slices are aligned."""
    count = like.numel()
    padded = math.ceil(count / _PADDING) * _PADDING
    flat = torch.zeros(members, padded, dtype=like.dtype, device=like.device)
    return flat[:, :count].unflatten(1, like.shape) if like.dim() else flat[:, 0]
