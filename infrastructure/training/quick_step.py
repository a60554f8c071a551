"""``optimizer.step()`` for its effect alone.

Around the fused kernel, torch announces the step to hooks and to the profiler, looks at every
parameter's type and device, and groups them: for a small model that costs more than the kernel.
Here nobody listens, and the trainer has looked at the parameters already.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.nn import Parameter
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def quick_step(optimizer: Optimizer) -> None:
    """Update the parameters as ``optimizer.step()`` would, its hooks and wrappers included.

    Args:
        optimizer: Fused, over float32 parameters on one device, with ``grad_scale`` and
            ``found_inf`` set.
    """
    if _is_observed(optimizer):
        optimizer.step()
        return
    fused = cast("Any", optimizer)
    fused._opt_called = True  # all that an LR scheduler's wrapper does
    if not isinstance(optimizer, Adam | AdamW) or not _adam(
        optimizer, fused.grad_scale, fused.found_inf
    ):
        step = type(optimizer).step
        getattr(step, "__wrapped__", step)(optimizer)


def _is_observed(optimizer: Optimizer) -> bool:
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
def _adam(optimizer: Optimizer, grad_scale: Tensor | None, found_inf: Tensor) -> bool:
    """Call the kernel, or change nothing and return False where torch's own step is needed.

    That is the first step, which makes the state, and what is rare: AMSGrad, a learning rate in
    a tensor, a parameter that is no plain one. Formula: ``torch/optim/adam.py``, `_fused_adam`.
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
        decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
        kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, [applied] * len(steps))
        kernel(
            parameters,
            [p.grad for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
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
    return True
