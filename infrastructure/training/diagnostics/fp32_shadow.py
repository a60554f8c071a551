"""How far a step in half precision is from the same step in FP32, at the current weights.

A frozen batch goes forward and backward twice, through copies of the model that share only its
parameters. So the training is not affected: no gradient is left, no buffer or attribute of a
module has changed, no random generator has advanced. The two passes show the rounding of one step,
not the drift of a whole training, since their weights are the same. State outside the model, such
as a running mean in the loss's closure, is not copied.
"""

from __future__ import annotations

import copy
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import BaselineCompared
from infrastructure.training.diagnostics.anomaly import AnomalyDetector
from infrastructure.training.diagnostics.job_copy import disable_dropout
from infrastructure.training.diagnostics.module_names import floating_tensors
from infrastructure.training.inputs import (
    preserved_generators,
    random_state,
    restore_random_state,
    same_random_state,
)
from infrastructure.training.precision import Precision, PrecisionForward, checked_loss

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """One forward and backward pass."""

    loss: float  # not scaled
    gradients: Sequence[Tensor | None]  # scaled, as autograd returned them; None if unused
    seconds: float  # wall time, with the device waited for
    drew_random: bool


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
        self._model, self._loss, self._batch = model, loss, batch
        self._device, self._clock = device, clock
        names = {
            parameter: f"{name or 'the model'} ({type(module).__name__})"
            for name, module in model.named_modules()
            for parameter in module.parameters(recurse=False)
            if parameter.requires_grad
        }
        self._parameters: list[Parameter] = list(names)
        self._modules = list(names.values())
        self._draws_half: bool | None = None

    def compare(self, *, step: int, precision: Precision, loss_scale: float) -> BaselineCompared:
        """Compute the batch under *precision* and in FP32; reads the device.

        Args:
            step: Steps attempted so far, for the event.
            precision: A half type.
            loss_scale: Loss scale for *precision*.

        Raises:
            RuntimeError: Memory is too small, or the model holds something that cannot be copied,
                such as a tensor attached to an old graph.
        """
        with preserved_generators(self._device):
            before = random_state(self._device)
            half = self._run(precision, loss_scale, before)
            exact = self._run(Precision.FP32, 1.0, before)
            comparable = not (exact.drew_random and self._draws_random_half(precision, before))
            difference = compare_gradients(
                half.gradients, exact.gradients, scale=loss_scale, modules=self._modules
            )
            nonfinite = not math.isfinite(half.loss) or difference.error == math.inf
            nonfinite_module = (
                self._first_nonfinite(precision, loss_scale, before) if nonfinite else ""
            )
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
            nonfinite_module=nonfinite_module,
            worst_module=difference.worst_module,
            seconds=half.seconds,
            fp32_seconds=exact.seconds,
            comparable=comparable,
        )

    def _copy(self) -> Module:
        shared: dict[int, Any] = {id(each): each for each in self._model.parameters()}
        model = copy.deepcopy(self._model, shared)
        disable_dropout(model)
        return model

    def _run(self, precision: Precision, scale: float, generators: dict[str, Any]) -> _Pass:
        forward = PrecisionForward(self._copy(), self._device, precision)
        restore_random_state(generators, self._device)
        self._wait()
        begun = self._clock()
        loss = checked_loss(forward.compute_loss(self._loss, self._batch))
        gradients = self._gradients(loss * scale)
        self._wait()
        seconds = self._clock() - begun
        torch.clear_autocast_cache()  # a caller's own autocast would keep half copies of weights
        drew_random = not same_random_state(generators, random_state(self._device))
        return _Pass(
            loss=loss.item(), gradients=gradients, seconds=seconds, drew_random=drew_random
        )

    def _gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(loss, self._parameters, allow_unused=True)

    def _draws_random_half(self, precision: Precision, generators: dict[str, Any]) -> bool:
        if self._draws_half is None:
            restore_random_state(generators, self._device)
            detector = _HalfRandomness()
            forward = PrecisionForward(self._copy(), self._device, precision)
            with detector, torch.no_grad():
                forward.compute_loss(self._loss, self._batch)
            self._draws_half = detector.found
        return self._draws_half

    def _first_nonfinite(
        self, precision: Precision, scale: float, generators: dict[str, Any]
    ) -> str:
        """Operation and module, from one more pass in which every operation is checked."""
        restore_random_state(generators, self._device)
        model = self._copy()
        detector = AnomalyDetector(model)
        forward = PrecisionForward(model, self._device, precision)
        loss = checked_loss(forward.compute_loss(detector.instrument(self._loss), self._batch))
        return str(detector.trace(loss * scale, self._gradients) or "")

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class _HalfRandomness(TorchDispatchMode):
    """Detects an operation that draws random numbers and returns half tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.found |= any(tensor.dtype in _HALF for tensor in floating_tensors(result))
        return result


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
