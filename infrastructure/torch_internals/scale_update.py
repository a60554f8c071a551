"""torch's update of a loss scale on the device, as its ``GradScaler`` calls it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from infrastructure.torch_internals.guard import checked

Update = Callable[[Tensor, Tensor, Tensor, float, float, int], object]


def update_by_operations(
    scale: Tensor, tracker: Tensor, overflow: Tensor, growth: float, backoff: float, interval: int
) -> None:
    """Do in documented operations what torch's kernel does in one."""
    overflowed = overflow != 0.0
    grows = (tracker + 1 == interval) & ~overflowed
    grown = scale * growth
    grown = torch.where(grown.isfinite() & grows, grown, scale)
    scale.copy_(torch.where(overflowed, scale * backoff, grown))
    tracker.add_(1).mul_(~(overflowed | grows))


def _works(update: Update) -> bool:
    scale = torch.tensor(8.0, dtype=torch.float32, device="cpu")
    tracker, seen = torch.zeros((), dtype=torch.int32, device="cpu"), []
    for overflow in (0.0, 1.0, 0.0, 0.0):
        update(scale, tracker, torch.full_like(scale, overflow), 2.0, 0.5, 2)
        seen.append((scale.item(), tracker.item()))
    return seen == [(8.0, 1), (4.0, 0), (4.0, 1), (8.0, 0)]


update_scale: Update = checked("_amp_update_scale_", _works, update_by_operations)
"""Back off, grow or wait: changes scale (float32 ``[]``) and growth tracker (int32 ``[]``).

The further arguments are the overflow (float32 ``[]``, 1 or 0), growth factor, backoff factor and
growth interval. Reads nothing back.
"""
