"""Whether a stacked computation gives the very bits of its members' own computations.

A product's last bit depends on the kernel that the library chooses: by sizes, by alignment, by the
number of products in one call. So a stacked computation is tried once on random numbers, for each
shape, and is used only where every result and every gradient agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

ALIGNMENT_BYTES = 64
"""A slice begins at a multiple of this, as torch's own allocations do: kernels round differently
elsewhere."""

_VECTORS_BYTES = 128  # two vectors of the widest CPU: what a loop takes at once
_GRAIN_ELEMENTS = 32_768  # from this on torch divides an elementwise operation among threads


def is_aligned(slice_elements: int, dtype: torch.dtype = torch.float32) -> bool:
    """Whether all slices of a contiguous stack begin at a multiple of `ALIGNMENT_BYTES`."""
    return slice_elements * dtype.itemsize % ALIGNMENT_BYTES == 0


def elementwise_agrees(
    slice_elements: int, slices: int, dtype: torch.dtype = torch.float32
) -> bool:
    """Whether an elementwise function may run on a whole stack.

    The vector code and the code for the remainder of a tensor round differently; which element is
    in the remainder must be the same as in a tensor of its own.
    """
    if slice_elements * dtype.itemsize % _VECTORS_BYTES:
        return False
    return torch.get_num_threads() == 1 or slices * slice_elements < _GRAIN_ELEMENTS


def agrees(
    stacked: Callable[..., Tensor],
    alone: Callable[..., Tensor],
    shapes: Sequence[Sequence[int]],
    *,
    members: int,
    device: torch.device,
) -> bool:
    """`runs_agree` for functions of a module under the autocast in force; tried once for each case.

    Args:
        stacked, alone: Functions that are the same objects in every call.
    """
    half, threads = autocast_dtype(device), torch.get_num_threads()
    case = (stacked, alone, tuple(map(tuple, shapes)), members, device, half, threads)
    if case not in _CASES:
        _CASES[case] = runs_agree(stacked, alone, shapes, members=members, device=device)
    return _CASES[case]


_CASES: dict[Hashable, bool] = {}


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Dtype of the autocast in force, or None where there is none."""
    on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else None


def runs_agree(
    stacked: Callable[..., Tensor],
    alone: Callable[..., Tensor],
    shapes: Sequence[Sequence[int]],
    *,
    members: int,
    device: torch.device,
) -> bool:
    """Whether *stacked* on stacks of random numbers equals *alone* on every slice, bit for bit.

    Reads the device. Torch's global generators do not change.

    Args:
        stacked: Function of stacks, one for each of *shapes*, ``[members, *shape]``; returns a
            stack.
        alone: The same function of tensors of one member.
        shapes: Shapes of one member's arguments.
        members: Number of slices.
    """
    generator = random_numbers(device)

    def random(shape: Sequence[int]) -> Tensor:
        return torch.randn((members, *shape), generator=generator, device=device)

    stacks = [random(shape) for shape in shapes]
    (result,) = _with_gradients(stacked, stacks, None)
    weights = random(result.shape[1:])
    together = _with_gradients(stacked, stacks, weights)
    for i in range(members):
        single = _with_gradients(alone, [stack[i].clone() for stack in stacks], weights[i].clone())
        if not all(torch.equal(a[i], b) for a, b in zip(together, single, strict=True)):
            return False
    return True


def random_numbers(device: torch.device) -> torch.Generator:
    """Generator for a trial. Its seed is none that data are made with: targets might be equal."""
    return torch.Generator(device).manual_seed(0x5EED_F1EE7)


def _with_gradients(
    function: Callable[..., Tensor],
    arguments: Sequence[Tensor],
    weights: Tensor | None,
) -> list[Tensor]:
    leaves = [argument.clone().requires_grad_() for argument in arguments]
    with torch.enable_grad():
        result = function(*leaves).float()
        if weights is None:
            return [result.detach()]
        return [result.detach(), *torch.autograd.grad(result, leaves, weights)]
