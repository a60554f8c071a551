"""Checks before training that FP32 means FP32: a model may contain an autocast of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import structlog
import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract import Job
from infrastructure.torch_internals.dispatch_mode import TorchDispatchMode
from infrastructure.training.diagnostics.module_names import RunningModules
from infrastructure.training.model_copy import copy_model
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.keep_fp32 import find_modules, keep_in_fp32
from infrastructure.training.rounds import batches_of_each_kind

_HALF = (torch.float16, torch.bfloat16)

log = structlog.get_logger()


class HalfPrecisionInModelError(ValueError):
    """An FP32 step computed in half precision, so a rollback would have no effect.

    Args:
        module: Qualified name and class of the innermost module that was running.
        operation: The operation that returned a half tensor.
    """

    def __init__(self, module: str, operation: str) -> None:
        super().__init__(
            f"under FP32 the model computes in half precision: {operation} in {module}. Remove the "
            "autocast or .half() there; the trainer chooses the precision"
        )
        self.module, self.operation = module, operation


def check_fp32_step(job: Job, device: torch.device) -> None:
    """Run one FP32 forward and backward on a copy of the model; no half tensor may appear.

    An `OnPolicyJob` generates a round as well, and computes a batch of its warm-up and one of a
    later round.

    Warns of modules in the job's ``keep_fp32`` that the loss never calls.

    Neither the job's model nor any random state changes.

    Raises:
        HalfPrecisionInModelError: A half tensor appeared; the message names the module.
        UnknownModuleError: The job keeps a module in FP32 that its model does not have.
        UncopyableModelError: See `copy_model`.
        ValueError: The job yields no batches.
    """
    model = copy_model(job.model).to(device).train()
    keep_in_fp32(model, job.kept_modules, device)
    called = _watch_calls(find_modules(model, job.kept_modules))
    forward = PrecisionForward(model, device, Precision.FP32)
    running = RunningModules(model)
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), _NoHalfTensors(running):
        for batch in batches_of_each_kind(job, model, device):
            forward.compute_loss(job.loss, batch).backward()
    idle = [name for name in called if not any(map(called.get, _related(name, called)))]
    if idle:
        log.warning(
            "keep_fp32_without_effect",
            modules=[name for name in idle if name.rpartition(".")[0] not in idle],
            reason="the loss never calls them, so nothing in them computes in FP32",
            remedy="name the module whose code uses their weights",
        )


def _watch_calls(modules: Mapping[str, Module]) -> dict[str, bool]:
    """Whether each of *modules* has been called since; filled by hooks that stay."""
    called = dict.fromkeys(modules, False)
    for name, module in modules.items():
        module.register_forward_pre_hook(lambda *_, name=name: called.update({name: True}))
    return called


def _related(name: str, names: Iterable[str]) -> list[str]:
    """Those of *names* that are *name*, around it or inside it."""
    return [
        other
        for other in names
        if f"{name}.".startswith(f"{other}.") or other.startswith(f"{name}.")
    ]


class _NoHalfTensors(TorchDispatchMode):
    def __init__(self, running: RunningModules) -> None:
        super().__init__()
        self._running = running

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs: Iterable[Any] = result if isinstance(result, tuple | list) else (result,)
        if any(isinstance(output, Tensor) and output.dtype in _HALF for output in outputs):
            raise HalfPrecisionInModelError(str(self._running), str(func))
        return result
