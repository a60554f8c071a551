"""One gradient against another: how far, in which direction, what was lost, and where most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientDifference:
    """See `BaselineCompared`, whose fields these become."""

    error: float | None = None
    cosine: float | None = None
    underflow: float | None = None
    worst_module: str = ""


def compare_gradients(
    half: Sequence[Tensor | None],
    exact: Sequence[Tensor | None],
    *,
    scale: float,
    modules: Sequence[str],
) -> GradientDifference:
    """Compare the gradients of all parameters; reads the device once.

    Args:
        half: Float32, multiplied by *scale*; None for zeros.
        exact: Float32, of the same parameters; None where a parameter is not used.
        scale: The loss scale of *half*.
        modules: Of each parameter, the name of its module.
    """
    owners = [module for module, g in zip(modules, exact, strict=True) if g is not None]
    rows = [_sums(g, e, scale) for g, e in zip(half, exact, strict=True) if e is not None]
    if not rows:
        return GradientDifference()
    table = torch.stack(rows).cpu()  # [parameters, sums]
    difference, exact_norm, half_norm = (float(torch.linalg.vector_norm(c)) for c in table.T[:3])
    dot, lost, nonzero = (float(total) for total in table.T[3:].sum(1))
    if not 0.0 < exact_norm < math.inf:
        return GradientDifference()
    if not math.isfinite(half_norm):
        return GradientDifference(error=math.inf, underflow=lost / nonzero)
    shares: defaultdict[str, float] = defaultdict(float)
    for owner, distance in zip(owners, table[:, 0].tolist(), strict=True):
        shares[owner] += distance**2
    return GradientDifference(
        error=difference / exact_norm,
        cosine=dot / (exact_norm * half_norm) if half_norm else 0.0,
        underflow=lost / nonzero,
        worst_module=max(shares, key=lambda owner: shares[owner]) if difference else "",
    )


def _sums(half: Tensor | None, exact: Tensor, scale: float) -> Tensor:
    """Float64 ``[6]``: norms of difference, exact and half; their product; lost, not zero."""
    half = torch.zeros_like(exact) if half is None else half / scale
    norms = [_norm(half - exact), _norm(exact), _norm(half)]
    dot = (half.double() * exact.double()).sum()
    nonzero = exact != 0.0
    counts = [((half == 0.0) & nonzero).sum().double(), nonzero.sum().double()]
    return torch.stack([*norms, dot, *counts])


def _norm(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm
