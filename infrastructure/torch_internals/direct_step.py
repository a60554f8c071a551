"""An optimizer's step without the wrappers that torch puts around it, where nothing needs them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adam, AdamW, Optimizer

from infrastructure.torch_internals.guard import part

# Where this torch lacks one of these, every optimizer counts as observed: `step` is called.
_UNKNOWN = {"unknown": None}
_optimizers = sys.modules[Optimizer.__module__]  # torch.optim deletes its name
_profiler_enabled: Callable[[], bool] = part(torch._C._autograd, "_profiler_enabled", lambda: True)
_pre_hooks: Mapping[Any, Any] = part(_optimizers, "_global_optimizer_pre_hooks", _UNKNOWN)
_post_hooks: Mapping[Any, Any] = part(_optimizers, "_global_optimizer_post_hooks", _UNKNOWN)
CALLED = "_opt_called"
"""Attribute of an optimizer: True tells an LR scheduler that its step was called."""
_OWN_HOOKS = {"_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}
if not Optimizer.__annotations__.keys() >= _OWN_HOOKS:
    _pre_hooks = _UNKNOWN
# Where this torch lacks one of these, its own step is called inside the wrappers.
_adam: Callable[..., None] | None = part(torch, "_fused_adam_", None)
_adamw: Callable[..., None] | None = part(torch, "_fused_adamw_", None)
_add: Callable[..., None] | None = part(torch, "_foreach_add_", None)


def direct_step(optimizer: Optimizer, grad_scale: Tensor | None, found_inf: Tensor) -> None:
    """Update the parameters exactly as ``optimizer.step()`` would, with less host time.

    Around the fused kernel, torch announces the step to hooks and to the profiler, checks every
    parameter's type and device, and groups them; for a small model that costs more than the
    kernel. Without hooks or a profiler, and with parameters that the trainer has checked, this
    calls the kernel directly; with them it calls ``optimizer.step()``.

    Args:
        optimizer: Fused optimizer over float32 parameters on one device.
        grad_scale: float32 ``[]``, number to divide the gradients by; None for 1.
        found_inf: float32 ``[]``: 1 changes nothing, 0 updates.
    """
    fused, observed = cast("Any", optimizer), is_observed(optimizer)
    if not observed:
        fused._opt_called = True  # all that an LR scheduler's wrapper does
        if isinstance(optimizer, Adam | AdamW) and _call_adam_kernel(
            optimizer, grad_scale, found_inf
        ):
            return
    fused.grad_scale, fused.found_inf = grad_scale, found_inf
    try:
        if observed:
            optimizer.step()
        else:
            plain_step(optimizer)
    finally:
        fused.grad_scale = fused.found_inf = None


def unobserved_step(optimizer: Optimizer) -> bool:
    """Take the plain step of an optimizer that nothing observes; False if that is not possible."""
    if not is_plain(optimizer) or is_observed(optimizer):
        return False
    cast("Any", optimizer)._opt_called = True
    plain_step(optimizer)
    return True


@torch.no_grad()
def plain_step(optimizer: Optimizer) -> None:
    """Call torch's own step inside its wrappers, which call hooks and import ``torch._dynamo``.

    The import takes over a second of CPU time. Gradients of the step itself are off, as the wrapper
    has them unless the optimizer is differentiable, which a fused one cannot be.
    """
    inspect.unwrap(type(optimizer).step)(optimizer)


def is_plain(optimizer: Optimizer) -> bool:
    """Whether the wrappers of ``step`` are torch's own, and nobody differentiates through it."""
    ours = type(optimizer).__module__.startswith("torch.optim.")
    return ours and not any(group.get("differentiable") for group in optimizer.param_groups)


def is_observed(optimizer: Optimizer) -> bool:
    """Whether hooks or a profiler expect that ``optimizer.step()`` is called."""
    replaced = optimizer.__dict__.get("step")
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _pre_hooks
        or _post_hooks
        or _profiler_enabled()
        or (replaced is not None and not _is_of_lr_scheduler(replaced, optimizer))
    )


def _is_of_lr_scheduler(replaced: object, optimizer: Optimizer) -> bool:
    wraps = getattr(replaced, "__wrapped__", None)
    return hasattr(replaced, "_wrapped_by_lr_sched") and wraps is type(optimizer).step


@torch.no_grad()
def _call_adam_kernel(optimizer: Optimizer, grad_scale: Tensor | None, found_inf: Tensor) -> bool:
    """Call the kernel, or change nothing and return False where torch's own step is needed.

    It is needed for the first step, which makes the state, and in rare cases: AMSGrad, a learning
    rate in a tensor, a subclass of Parameter. Formula: ``torch/optim/adam.py``, `_fused_adam`.
    """
    if _adam is None or _adamw is None or _add is None:
        return False
    calls = []
    for group in optimizer.param_groups:
        parameters = [p for p in group["params"] if p.grad is not None]
        states = [optimizer.state[p] for p in parameters]
        if (
            group["amsgrad"]
            or isinstance(group["lr"], Tensor)
            or not all(states)
            or any(type(p) is not Parameter for p in parameters)
        ):
            return False
        if parameters:
            calls.append((group, parameters, states))
    applied = 1.0 - found_inf
    for group, parameters, states in calls:
        steps = [state["step"] for state in states]
        _add(steps, [applied] * len(steps))
        adam_kernel(
            optimizer,
            group,
            list(parameters),
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            steps,
            grad_scale=grad_scale,
            found_inf=found_inf,
        )
    return True


def adam_kernel(  # noqa: PLR0913, PLR0917 as torch's
    optimizer: Optimizer,
    group: Mapping[str, Any],
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    *,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Call torch's fused kernel of *optimizer*, an Adam or AdamW, under ``torch.no_grad()``.

    Updates *parameters*, *means* and *squares* in place; all tensors are float32 on one device.

    Args:
        optimizer: Decides between Adam's and AdamW's weight decay; nothing of its state is read.
        group: Parameter group with the hyperparameters.
        parameters: Parameters.
        gradients: Gradient of each of them.
        means: Running mean of the gradients, Adam's ``exp_avg``, of each.
        squares: Running mean of their squares, ``exp_avg_sq``, of each.
        steps: Step counts ``[]`` of each, this step included.
        grad_scale: ``[]``, number to divide the gradients by; None for 1.
        found_inf: ``[]``: 1 changes nothing, 0 or None updates.
    """
    decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
    kernel = cast("Callable[..., None]", _adamw if decoupled else _adam)
    kernel(
        parameters,
        gradients,
        means,
        squares,
        [],
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
        grad_scale=grad_scale,
        found_inf=found_inf,
    )
