"""Where updates are lost: gradients too small for the half type, and steps too small for a weight.

Underflow is what the loss scale is for: Micikevicius et al. 2018, "Mixed Precision Training",
section 3.2. A weight ``w`` stagnates where ``w + update`` rounds to ``w``: section 3.1 there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.training.precision import Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Underflow:
    """Shares of the gradients that half precision loses or blurs.

    Attributes:
        zero: Share of the elements that are not zero in FP32 and are zero in half precision.
        subnormal: Share of those that are subnormal in the half type, so that bits are missing, and
            are not subnormal in FP32.
        module: Module with most of both; empty if there are none.
    """

    zero: float
    subnormal: float
    module: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stagnation:
    """Share of the weights that an update did not change.

    Attributes:
        rate: Share of the weights with a gradient that is not zero which the step left as they
            were.
        module: Module with most of them; empty if there are none.
    """

    rate: float
    module: str


def measure_underflow(
    half: Sequence[Tensor | None],
    exact: Sequence[Tensor | None],
    *,
    precision: Precision,
    scale: float,
    modules: Sequence[str],
) -> Underflow | None:
    """Compare the gradients of all parameters; reads the device once.

    A gradient in which a value is not one of the half type was not computed in it, as in a module
    that is kept in FP32: its small values are not subnormal.

    Args:
        half: Finite gradients of *precision* in float32, multiplied by *scale*; None for zeros.
        exact: Gradients of FP32, not scaled, of the same parameters; None for an unused parameter.
        modules: Name of each parameter's module.

    Returns:
        None if FP32's gradient is zero.
    """
    owners = [
        module for module, gradient in zip(modules, exact, strict=True) if gradient is not None
    ]
    rows = [
        _lost(h, e, precision.compute, scale)
        for h, e in zip(half, exact, strict=True)
        if e is not None
    ]
    totals, module = _sum(rows, owners, worst_of=slice(0, 2))
    zero, subnormal, nonzero = totals or (0, 0, 0)
    if not nonzero:
        return None
    return Underflow(zero=zero / nonzero, subnormal=subnormal / nonzero, module=module)


def measure_stagnation(
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    moved: Sequence[Tensor],
    *,
    modules: Sequence[str],
) -> Stagnation | None:
    """Compare the weights before and after an applied step; reads the device once.

    Args:
        before, after: The same weights.
        moved: bool, of the same shapes: whether the gradient was not zero.
        modules: Name of each weight's module.

    Returns:
        None if every gradient was zero.
    """
    rows = [
        torch.stack([((old == new) & mask).sum(), mask.sum()])
        for old, new, mask in zip(before, after, moved, strict=True)
    ]
    totals, module = _sum(rows, modules, worst_of=slice(0, 1))
    unchanged, nonzero = totals or (0, 0)
    return Stagnation(rate=unchanged / nonzero, module=module) if nonzero else None


def _lost(half: Tensor | None, exact: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Int64 ``[3]``: zero only in half precision, subnormal only there, not zero in FP32."""
    nonzero = exact != 0.0
    if half is None:
        return torch.stack([nonzero.sum(), torch.zeros_like(nonzero.sum()), nonzero.sum()])
    size = half.abs()
    computed_in_half = (half.to(dtype).float() == half).all()
    normal_in_fp32 = (exact * scale).abs() >= torch.finfo(torch.float32).tiny
    subnormal = (size > 0.0) & (size < torch.finfo(dtype).tiny) & normal_in_fp32
    lost = (size == 0.0) & nonzero
    return torch.stack([lost.sum(), (subnormal & computed_in_half).sum(), nonzero.sum()])


def _sum(
    rows: Sequence[Tensor], owners: Sequence[str], *, worst_of: slice
) -> tuple[list[int], str]:
    """The sum of *rows*, and the owner with most in the columns *worst_of*; reads the device."""
    if not rows:
        return [], ""
    table = torch.stack(list(rows)).cpu()
    shares: defaultdict[str, int] = defaultdict(int)
    for owner, row in zip(owners, table[:, worst_of].sum(1).tolist(), strict=True):
        shares[owner] += row
    worst = max(shares, key=lambda owner: shares[owner])
    return table.sum(0).tolist(), worst if shares[worst] else ""
