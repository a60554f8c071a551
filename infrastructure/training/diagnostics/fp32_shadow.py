"""How far a step in half precision is from the same step in FP32, at the current weights.

A frozen batch goes forward and backward twice, by `RepeatedPasses`, so the training is not
affected: no random generator advances either. The two passes show the rounding of one step, not
the drift of a whole training, since their weights are the same.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import BaselineCompared
from infrastructure.training.diagnostics.repeated_pass import RepeatedPasses
from infrastructure.training.inputs import preserved_generators, random_state
from infrastructure.training.precision import Precision


class Fp32Shadow:
    """Computes one frozen batch in half precision and in FP32.

    Needs the memory of two gradients and of one step's activations while it runs. Dropout is off,
    so that both passes compute the same.

    Args:
        model: Model in this process alone, float32, in training mode; not changed.
        batch: Batch on *device*; the same at every call.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        model: Module,
        loss: Callable[[Forward, Batch], Tensor],
        batch: Batch,
        device: torch.device,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._passes = RepeatedPasses(model, loss, device, clock=clock)
        self._batch = batch

    def compare(self, *, step: int, precision: Precision, loss_scale: float) -> BaselineCompared:
        """Compute the batch under *precision* and in FP32; reads the device.

        Args:
            step: Steps attempted so far, for the event.
            precision: A half type.
            loss_scale: Loss scale for *precision*.

        Raises:
            UncopyableModelError: See `copy_model`.
            RuntimeError: Memory is too small.
        """
        passes, batch = self._passes, self._batch
        with preserved_generators(passes.device):
            before = random_state(passes.device)
            half = passes.run(batch, precision, loss_scale, before)
            exact = passes.run(batch, Precision.FP32, 1.0, before)
            comparable = not (
                exact.drew_random and passes.draws_random_half(batch, precision, before)
            )
            difference = compare_gradients(
                half.gradients, exact.gradients, scale=loss_scale, modules=passes.modules
            )
            nonfinite_module = ""
            if not math.isfinite(half.loss) or difference.error == math.inf:
                origins = passes.trace(batch, precision, loss_scale, before)
                nonfinite_module = str(origins.first or "")
        if not comparable:
            difference = GradientDifference()
        return BaselineCompared(
            step=step,
            precision=precision.value,
            loss_scale=loss_scale,
            loss=half.loss,
            fp32_loss=exact.loss,
            gradient_error=difference.error,
            gradient_cosine=difference.cosine,
            underflow=difference.underflow,
            blocked=difference.blocked,
            nonfinite_module=nonfinite_module,
            worst_module=difference.worst_module,
            seconds=half.seconds,
            fp32_seconds=exact.seconds,
            comparable=comparable,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientDifference:
    """See `BaselineCompared`, whose fields these become."""

    error: float | None = None
    cosine: float | None = None
    underflow: float | None = None
    blocked: float | None = None
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
        half: Gradients in float32, multiplied by *scale*; None for zeros.
        exact: Gradients of FP32, of the same parameters; None for an unused parameter.
        scale: The loss scale of *half*.
        modules: Name of each parameter's module.
    """
    owners = [module for module, g in zip(modules, exact, strict=True) if g is not None]
    rows = [_sums(g, e, scale) for g, e in zip(half, exact, strict=True) if e is not None]
    if not rows:
        return GradientDifference()
    table = torch.stack(rows).cpu()  # [parameters, sums]
    difference, exact_norm, half_norm = (float(torch.linalg.vector_norm(c)) for c in table.T[:3])
    dot, lost, nonzero, blocked = (float(total) for total in table.T[3:].sum(1))
    if not 0.0 < exact_norm < math.inf:
        return GradientDifference()
    if not math.isfinite(half_norm):
        return GradientDifference(
            error=math.inf, underflow=lost / nonzero, blocked=blocked / nonzero
        )
    shares: defaultdict[str, float] = defaultdict(float)
    for owner, distance in zip(owners, table[:, 0].tolist(), strict=True):
        shares[owner] += distance**2
    return GradientDifference(
        error=difference / exact_norm,
        cosine=dot / (exact_norm * half_norm) if half_norm else 0.0,
        underflow=lost / nonzero,
        blocked=blocked / nonzero,
        worst_module=max(shares, key=lambda owner: shares[owner]) if difference else "",
    )


def _sums(half: Tensor | None, exact: Tensor, scale: float) -> Tensor:
    """Float64 ``[7]``: norms of difference, exact and half; product; lost, not zero, blocked."""
    half = torch.zeros_like(exact) if half is None else half / scale
    norms = [_norm(half - exact), _norm(exact), _norm(half)]
    dot = (half.double() * exact.double()).sum()
    nonzero = exact != 0.0
    lost, count = ((half == 0.0) & nonzero).sum().double(), nonzero.sum().double()
    blocked = torch.where(lost == count, count, 0.0)
    return torch.stack([*norms, dot, lost, count, blocked])


def _norm(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm
