"""Unscale, clip and update: in one pass where torch's fused optimizers allow it.

torch's fused optimizers divide each gradient by ``optimizer.grad_scale`` and leave parameters,
moments and step count alone where ``optimizer.found_inf`` is 1 (``torch/optim/adamw.py`` and its
siblings; `GradScaler.step` sets the same attributes). They are not documented, so a start-up
check runs both cases on this torch and device.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import structlog
import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from infrastructure.training.config import FP16TrainingConfig

_FUSED = (Adam, AdamW, SGD, Adagrad)

_SMOOTHING = 0.97
_Z_SCORE = 2.5
_WARM_UP_STEPS = 25.0
_EPSILON = 1e-6

log = structlog.get_logger()


class OptimizerStep:
    """Applies scaled gradients, unscaled and clipped, or skips them.

    Args:
        optimizer: Any optimizer; see `fused_step_unavailable_reason` for which are fast.
        parameters: Parameters the optimizer updates.
        config: How to clip.

    Attributes:
        adaptive_clip: Clips as well, if the configuration asks for it.
        fused_step_unavailable_reason: Reason the one-pass step is unavailable, or None.

    Raises:
        ValueError: The optimizer needs a closure.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Parameter],
        config: FP16TrainingConfig,
    ) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._max_grad_norm = config.max_grad_norm
        self._device = parameters[0].device
        self.adaptive_clip = AdaptiveClip(self._device) if config.adaptive_clip else None
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"{type(optimizer).__name__} computes the loss several times per step, by a "
                "closure, and a loss scale holds for one gradient: choose an optimizer without a "
                "closure"
            )
        self.fused_step_unavailable_reason: str | None = None
        self.choose_path()
        optimizer.register_load_state_dict_pre_hook(self._stay_fused)
        optimizer.register_load_state_dict_post_hook(lambda _: self.choose_path())

    def choose_path(self) -> None:
        """Inspect the optimizer's groups and state, which may be new, and prepare for them."""
        before = self.fused_step_unavailable_reason
        reason = fused_step_unavailable_reason(self._optimizer, self._device)
        self.fused_step_unavailable_reason = reason
        if reason is None:
            _fill_momentum(self._optimizer)
        elif reason != before:
            log.info("unfused_step_chosen", reason=reason, reads_per_step=1)

    def _stay_fused(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Ignore ``fused=False`` in a loaded state: it describes the optimizer that saved it."""
        groups = [dict(group) for group in state["param_groups"]]
        if self.fused_step_unavailable_reason is None:
            for group, own in zip(groups, optimizer.param_groups, strict=False):
                group["fused"] = own["fused"]  # torch itself reports a wrong number of groups
        return {**state, "param_groups": groups}

    def __call__(self, norm: Tensor, divisor: Tensor | None, found_inf: Tensor) -> None:
        """Update the parameters unless *found_inf*.

        Unscaling divides by ``divisor``; clipping multiplies by ``min(1, max_norm / norm)``. Both
        at once is division by ``divisor * max(1, norm / max_norm)``.

        Args:
            norm: float32 ``[]``, global L2 norm of the unscaled gradients.
            divisor: float32 ``[]``, number to divide the gradients by; None for 1.
            found_inf: float32 ``[]``: 1 leaves parameters and optimizer state alone, 0 does not.
        """
        if self._max_grad_norm is not None:
            clip = norm.mul(1.0 / self._max_grad_norm).clamp_(min=1.0)
            if self.adaptive_clip is not None:
                clip = torch.maximum(clip, self.adaptive_clip(norm, found_inf))
            divisor = clip if divisor is None else clip.mul_(divisor)
        elif self.adaptive_clip is not None:
            clip = self.adaptive_clip(norm, found_inf)
            divisor = clip if divisor is None else clip * divisor
        if self.fused_step_unavailable_reason is not None:
            self._unscale_then_step(divisor, found_inf)
            return
        optimizer = cast("Any", self._optimizer)
        optimizer.grad_scale, optimizer.found_inf = divisor, found_inf
        try:
            direct_step(optimizer)
        finally:
            optimizer.grad_scale = optimizer.found_inf = None

    def _unscale_then_step(self, divisor: Tensor | None, found_inf: Tensor) -> None:
        if found_inf.item():  # the one device read
            return
        if divisor is not None:
            inverse = divisor.reciprocal()
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(inverse)
        if _is_plain(self._optimizer) and not is_observed(self._optimizer):
            cast("Any", self._optimizer)._opt_called = True  # as in `direct_step`
            _plain_step(self._optimizer)
        else:
            self._optimizer.step()


def global_norm(grads: list[Tensor]) -> Tensor:
    """L2 norm over all of *grads*, ``[]``; inf or NaN if any element is.

    A finite element above about 1e19 overflows the squares and counts as non-finite.

    Raises:
        TypeError: A gradient is sparse.
    """
    try:
        norms = torch._foreach_norm(grads)
    except NotImplementedError as error:
        raise TypeError(
            "a gradient is sparse, and clipping and overflow checks need dense ones: build "
            "Embedding and EmbeddingBag with sparse=False"
        ) from error
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def fused_step_unavailable_reason(optimizer: Optimizer, device: torch.device) -> str | None:
    """Reason *optimizer* cannot take the one-pass step, or None.

    Reads the device, once per optimizer class.
    """
    kind = type(optimizer)
    if kind not in _FUSED:
        return f"{kind.__name__} is not one of torch's fused optimizers"
    if not all(group.get("fused") for group in optimizer.param_groups):
        return f"{kind.__name__} was built without fused=True"
    if any(group.get("dampening") for group in optimizer.param_groups):
        return "fused SGD with dampening starts from an uninitialised momentum buffer on overflow"
    if not _skips_and_unscales(kind, device):
        return f"fused {kind.__name__} of torch {torch.__version__} failed the start-up check"
    return None


def _fill_momentum(optimizer: Optimizer) -> None:
    """Give fused SGD its momentum buffers.

    An overflow on the first step would leave them uninitialised. Zeros are exact: without
    dampening, the first applied step makes the buffer ``momentum * 0 + gradient``.
    """
    if not isinstance(optimizer, SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"]:
            for parameter in group["params"]:
                state = cast("dict[str, Any]", optimizer.state[parameter])
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)


@cache
def _skips_and_unscales(kind: type[Optimizer], device: torch.device) -> bool:
    def stepped(grad: float, attributes: Mapping[str, float], *, first: bool) -> list[float]:
        parameter = Parameter(torch.ones(4, device=device))
        optimizer = cast("Any", kind)([parameter], lr=0.125, fused=True)
        if not first:
            parameter.grad = torch.ones_like(parameter)
            _plain_step(optimizer)
        parameter.grad = torch.full_like(parameter, grad)
        for name, value in attributes.items():
            setattr(optimizer, name, torch.tensor(value, device=device))
        if attributes:
            direct_step(optimizer)
        elif grad:
            _plain_step(optimizer)
        step = optimizer.state[parameter].get("step", torch.zeros(()))
        return [parameter[0].item(), step.item()]

    def right(*, first: bool) -> bool:
        before = stepped(0.0, {}, first=first)
        after = stepped(0.5, {}, first=first)
        scaled = stepped(4.0, {"grad_scale": 8.0, "found_inf": 0.0}, first=first)
        skipped = stepped(float("inf"), {"grad_scale": 8.0, "found_inf": 1.0}, first=first)
        return before == skipped != after == scaled

    return right(first=True) and right(first=False)


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
        _plain_step(optimizer)


@torch.no_grad()
def _plain_step(optimizer: Optimizer) -> None:
    """Call torch's own step inside its wrappers, which call hooks and import ``torch._dynamo``.

    The import takes over a second of CPU time. Gradients of the step itself are off, as the wrapper
    has them unless the optimizer is differentiable, which a fused one cannot be.
    """
    inspect.unwrap(type(optimizer).step)(optimizer)


def _is_plain(optimizer: Optimizer) -> bool:
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

    Args:
        group: Parameter group with the hyperparameters.
        steps: Step counts, this step included.
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


class AdaptiveClip:
    """Clips a gradient norm that stands out of the running mean: ZClip.

    Kumar et al. 2025, "ZClip: Adaptive Spike Mitigation for LLM Pre-Training", arXiv 2504.02507,
    with its defaults. With mean m and deviation s of the norms so far, a norm g of z-score
    ``z = (g - m) / s`` above ``z0 = 2.5`` is clipped to ``m + s * z0**2 / z``; then
    ``m = a * m + (1 - a) * g`` and ``s**2 = a * s**2 + (1 - a) * (g - m)**2``, with ``a = 0.97``
    and the clipped g. The first 25 norms only establish m and s. A skipped step leaves them alone:
    an infinite norm would stay in a running mean for good.

    Only `state_dict` reads the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._count, self._mean, self._variance = torch.zeros(3, device=device).unbind()

    def __call__(self, norm: Tensor, found_inf: Tensor) -> Tensor:
        """Number to divide the gradients by; adds *norm* to the statistics.

        Args:
            norm: float32 ``[]``, global norm of the unscaled gradients.
            found_inf: float32 ``[]``: 1 if the step is skipped, else 0.

        Returns:
            float32 ``[]``, at least 1.
        """
        deviation = self._variance.sqrt() + _EPSILON
        z = (norm - self._mean) / deviation
        bound = self._mean + _Z_SCORE**2 * self._variance.sqrt() / z
        clips = (z > _Z_SCORE) & (self._count >= _WARM_UP_STEPS)
        clipped = torch.where(clips, bound, norm)
        divisor = torch.where(clips, norm / bound, 1.0)
        self._add(clipped, found_inf)
        return divisor

    def _add(self, norm: Tensor, found_inf: Tensor) -> None:
        """Update a plain mean and variance with the first norms, exponential ones after them."""
        isfinite = found_inf == 0.0
        self._count.add_(isfinite)
        weight = torch.where(
            self._count <= _WARM_UP_STEPS, 1.0 / self._count.clamp(min=1.0), 1.0 - _SMOOTHING
        )
        mean = self._mean + weight * (norm - self._mean)
        # The plain variance takes one distance from the old mean (Welford 1962), ZClip's none.
        from_mean = torch.where(self._count <= _WARM_UP_STEPS, norm - self._mean, norm - mean)
        variance = self._variance + weight * (from_mean * (norm - mean) - self._variance)
        self._mean.copy_(torch.where(isfinite, mean, self._mean))
        self._variance.copy_(torch.where(isfinite, variance, self._variance))

    def state_dict(self) -> dict[str, float]:
        """The statistics as plain numbers; reads the device."""
        return {
            "count": self._count.item(),
            "mean": self._mean.item(),
            "variance": self._variance.item(),
        }

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what `state_dict` returned."""
        self._count.fill_(state["count"])
        self._mean.fill_(state["mean"])
        self._variance.fill_(state["variance"])
