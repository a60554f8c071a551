"""An optimizer's step without the wrappers that torch puts around it, where nothing needs them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.nn import Parameter
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def direct_step(optimizer: Optimizer) -> None:
    """Update the parameters exactly as ``optimizer.step()`` would, with less host time.

    Around the fused kernel, torch announces the step to hooks and to the profiler, checks every
    parameter's type and device, and groups them; for a small model that costs more than the
    kernel. Without hooks or a profiler, and with parameters that the trainer has checked, this
    calls the kernel directly; with them it calls ``optimizer.step()``.

    Args:
        optimizer: Fused optimizer over float32 parameters on one device, with ``grad_scale`` and
            ``found_inf`` set.
    """
    if is_observed(optimizer):
        optimizer.step()
        return
    fused = cast("Any", optimizer)
    fused._opt_called = True  # all that an LR scheduler's wrapper does
    if not isinstance(optimizer, Adam | AdamW) or not _call_adam_kernel(
        optimizer, fused.grad_scale, fused.found_inf
    ):
        plain_step(optimizer)


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
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
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
        torch._foreach_add_(steps, [applied] * len(steps))
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
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
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
