"""Forward and backward passes of a model on a given batch that leave the training as it is.

They run through copies of the model that share only its parameters: no gradient is left, no buffer
or attribute of a module changes. State outside the model, such as a running mean in the loss's
closure, is not copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.torch_internals.dispatch_mode import TorchDispatchMode
from infrastructure.training.diagnostics.anomaly import AnomalyDetector, Origins
from infrastructure.training.diagnostics.job_copy import disable_dropout
from infrastructure.training.diagnostics.module_names import floating_tensors
from infrastructure.training.inputs import (
    random_state,
    restore_random_state,
    same_random_state,
)
from infrastructure.training.model_copy import copy_model
from infrastructure.training.precision import Precision, PrecisionForward, checked_loss

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One forward and backward pass.

    Attributes:
        loss: Not scaled.
        gradients: Scaled, float32, as autograd returned them; None if unused.
        seconds: Wall time, with the device waited for.
        drew_random: Whether a random generator advanced.
    """

    loss: float
    gradients: Sequence[Tensor | None]
    seconds: float
    drew_random: bool


class RepeatedPasses:
    """Repeats passes of *model*, which is not changed.

    Each pass needs the memory of one gradient and of one step's activations. A caller preserves
    the random generators: see `preserved_generators`.

    Args:
        model: Model in this process alone, float32, in training mode.
        clock: Monotonic seconds.

    Attributes:
        device: As given.
        parameters: The model's parameters that require a gradient, in the order of `Pass`.
        modules: Name of each parameter's module.
    """

    def __init__(
        self,
        model: Module,
        loss: Callable[[Forward, Batch], Tensor],
        device: torch.device,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model, self._loss, self.device, self._clock = model, loss, device, clock
        names = {
            parameter: f"{name or 'the model'} ({type(module).__name__})"
            for name, module in model.named_modules()
            for parameter in module.parameters(recurse=False)
            if parameter.requires_grad
        }
        self.parameters: list[Parameter] = list(names)
        self.modules = list(names.values())
        self._draws_half: bool | None = None

    def run(
        self,
        batch: Batch,
        precision: Precision,
        scale: float,
        generators: dict[str, Any],
        *,
        dropout: bool = False,
    ) -> Pass:
        """Run *batch* forward and backward; reads the device.

        Args:
            batch: On the device.
            scale: Number to multiply the loss by before the backward pass.
            generators: Result of `random_state` to begin with.
            dropout: Whether torch's own dropout drops.

        Raises:
            UncopyableModelError: See `copy_model`.
            RuntimeError: Memory is too small.
        """
        forward = PrecisionForward(self._copy(dropout=dropout), self.device, precision)
        restore_random_state(generators, self.device)
        self._wait()
        begun = self._clock()
        loss = checked_loss(forward.compute_loss(self._loss, batch))
        gradients = self._gradients(loss * scale)
        self._wait()
        seconds = self._clock() - begun
        torch.clear_autocast_cache()  # a caller's own autocast would keep half copies of weights
        drew_random = not same_random_state(generators, random_state(self.device))
        return Pass(loss=loss.item(), gradients=gradients, seconds=seconds, drew_random=drew_random)

    def trace(
        self,
        batch: Batch,
        precision: Precision,
        scale: float,
        generators: dict[str, Any],
        *,
        dropout: bool = False,
    ) -> Origins:
        """Run *batch* with every operation checked, which is slow; arguments as in `run`."""
        restore_random_state(generators, self.device)
        model = self._copy(dropout=dropout)
        detector = AnomalyDetector(model)
        forward = PrecisionForward(model, self.device, precision)
        loss = checked_loss(forward.compute_loss(detector.instrument(self._loss), batch))
        origins = detector.trace(loss * scale, self._gradients)
        torch.clear_autocast_cache()
        return origins

    def draws_random_half(
        self, batch: Batch, precision: Precision, generators: dict[str, Any]
    ) -> bool:
        """Whether a pass draws random numbers in half precision: FP32 draws others.

        Measured once, without dropout.
        """
        if self._draws_half is None:
            restore_random_state(generators, self.device)
            detector = _HalfRandomness()
            forward = PrecisionForward(self._copy(dropout=False), self.device, precision)
            with detector, torch.no_grad():
                forward.compute_loss(self._loss, batch)
            self._draws_half = detector.found
        return self._draws_half

    def _copy(self, *, dropout: bool) -> Module:
        model = copy_model(self._model, shared=self._model.parameters())
        if not dropout:
            disable_dropout(model)
        return model

    def _gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(loss, self.parameters, allow_unused=True)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


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
