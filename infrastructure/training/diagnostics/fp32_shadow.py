"""How far a step in half precision is from the same step in FP32, at the weights of the moment.

A frozen batch goes forward and backward twice, through copies of the model that share its
parameters and nothing else. So the training is exactly where it was: no gradient is left, no
buffer or attribute of a module has moved, no random generator has advanced. What the two passes
show is the rounding of one step; what a training has drifted by, they cannot: the weights are the
same. State outside the model, such as a running mean in the loss's closure, is not copied.
"""

from __future__ import annotations

import copy
import math
import time
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
from infrastructure.training.diagnostics.autograd_nodes import floating_tensors
from infrastructure.training.diagnostics.dropout import switch_off_dropout
from infrastructure.training.diagnostics.gradient_difference import compare_gradients
from infrastructure.training.diagnostics.workbench import undisturbed_generators
from infrastructure.training.inputs.generators import random_state, restore_random_state
from infrastructure.training.precision.forward import PrecisionForward, checked_loss
from infrastructure.training.precision.precision import Precision

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """One forward and backward pass.

    Attributes:
        loss: Not scaled.
        gradients: As autograd gave them, scaled; None for parameters that were not used.
        seconds: Wall time, with the device waited for.
        drew: Whether it drew random numbers.
    """

    loss: float
    gradients: Sequence[Tensor | None]
    seconds: float
    drew: bool


class Fp32Shadow:
    """Computes one frozen batch in half precision and in FP32.

    Needs the memory of two gradients and of one step's activations while it works. Dropout is
    off, so that both passes compute the same thing.

    Args:
        model: In this process alone, float32, in training mode; left as it is.
        loss: The job's.
        batch: On *device*; the same at every call.
        device: Of model and batch.
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
        self._draws_halves: bool | None = None

    def compare(self, *, step: int, precision: Precision, loss_scale: float) -> BaselineCompared:
        """Compute the batch under *precision* and in FP32; reads the device.

        Args:
            step: Steps attempted so far, for the event.
            precision: A half type.
            loss_scale: Of *precision*.

        Raises:
            RuntimeError: The memory does not suffice, or the model holds what cannot be copied,
                such as a tensor attached to an old graph.
        """
        with undisturbed_generators(self._device):
            before = random_state(self._device)
            half = self._run(precision, loss_scale, before)
            exact = self._run(Precision.FP32, 1.0, before)
            comparable = not (exact.drew and self._random_in_half(precision, before))
            difference = compare_gradients(
                half.gradients, exact.gradients, scale=loss_scale, modules=self._modules
            )
            nonfinite = not math.isfinite(half.loss) or difference.error == math.inf
            culprit = self._first_nonfinite(precision, loss_scale, before) if nonfinite else ""
        return BaselineCompared(
            step=step,
            precision=precision.value,
            loss_scale=loss_scale,
            loss=half.loss,
            fp32_loss=exact.loss,
            gradient_error=difference.error if comparable else None,
            gradient_cosine=difference.cosine if comparable else None,
            underflow=difference.underflow if comparable else None,
            nonfinite_module=culprit,
            worst_module=difference.worst_module if comparable else "",
            seconds=half.seconds,
            fp32_seconds=exact.seconds,
            comparable=comparable,
        )

    def _copy(self) -> Module:
        shared: dict[int, Any] = {id(each): each for each in self._model.parameters()}
        model = copy.deepcopy(self._model, shared)
        switch_off_dropout(model)
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
        drew = not _same_generators(generators, random_state(self._device))
        return _Pass(loss=loss.item(), gradients=gradients, seconds=seconds, drew=drew)

    def _gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(loss, self._parameters, allow_unused=True)

    def _random_in_half(self, precision: Precision, generators: dict[str, Any]) -> bool:
        if self._draws_halves is None:
            restore_random_state(generators, self._device)
            watch = _HalfRandomness()
            forward = PrecisionForward(self._copy(), self._device, precision)
            with watch, torch.no_grad():
                forward.compute_loss(self._loss, self._batch)
            self._draws_halves = watch.found
        return self._draws_halves

    def _first_nonfinite(
        self, precision: Precision, scale: float, generators: dict[str, Any]
    ) -> str:
        """Operation and module, from one more pass in which every operation is checked."""
        restore_random_state(generators, self._device)
        model = self._copy()
        detector = AnomalyDetector(model)
        forward = PrecisionForward(model, self._device, precision)
        loss = checked_loss(forward.compute_loss(detector.watched(self._loss), self._batch))
        return str(detector.trace(loss * scale, self._gradients) or "")

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class _HalfRandomness(TorchDispatchMode):
    """Notices an operation that draws random numbers and returns half tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.found |= any(tensor.dtype in _HALF for tensor in floating_tensors(result))
        return result


def _same_generators(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["python"] == other["python"] and all(
        one[name] is None or torch.equal(one[name], other[name]) for name in ("torch", "cuda")
    )
