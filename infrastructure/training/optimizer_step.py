"""Unscale, clip and update: in one pass where torch's fused optimizers allow it.

torch's fused optimizers unscale and skip by attributes that are not documented, so a start-up check
runs both cases on this torch and device: see `infrastructure.torch_internals.fused_check`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

import structlog
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from infrastructure.torch_internals import tensor_lists
from infrastructure.torch_internals.direct_step import direct_step, unobserved_step
from infrastructure.torch_internals.fused_check import skips_and_unscales
from infrastructure.torch_internals.guard import log_unavailable
from infrastructure.training.adaptive_clip import AdaptiveClip
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.multi_optimizer import members_of

_FUSED = (Adam, AdamW, SGD, Adagrad)

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
        TypeError: The optimizer is not one of torch's class.
        ValueError: The optimizer needs a closure or sparse gradients.
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
        for member in members_of(optimizer):
            _require_suitable(member)
        self.fused_step_unavailable_reason: str | None = None
        log_unavailable()
        self.choose_path()
        if type(optimizer) in _FUSED:  # no state makes another one fused, and it may lack hooks
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
            for group, current in zip(groups, optimizer.param_groups, strict=False):
                group["fused"] = current["fused"]  # torch itself reports a wrong number of groups
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
        direct_step(self._optimizer, divisor, found_inf)

    def _unscale_then_step(self, divisor: Tensor | None, found_inf: Tensor) -> None:
        if found_inf.item():  # the one device read
            return
        if divisor is not None:
            inverse = divisor.reciprocal()
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(inverse)
        if unobserved_step(self._optimizer):
            return
        try:
            self._optimizer.step()
        except Exception as error:  # libraries have classes of their own for a missing closure
            if "closure" in f"{type(error).__name__} {error}".lower():
                raise ValueError(_needs_closure(self._optimizer)) from error
            raise


def _require_suitable(optimizer: Optimizer) -> None:
    """Raise if *optimizer* can never take a step of the trainer."""
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"the optimizer must be a torch.optim.Optimizer, got {kind}, whose state a checkpoint "
            "may not hold"
        )
    if isinstance(optimizer, SparseAdam):
        raise ValueError(
            f"{kind} needs sparse gradients, and clipping and overflow checks need dense ones: "
            "build Embedding and EmbeddingBag with sparse=False, and use Adam"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(_needs_closure(optimizer))


def _needs_closure(optimizer: Optimizer) -> str:
    return (
        f"{type(optimizer).__name__} computes the loss several times per step, by a closure, and a "
        "loss scale holds for one gradient: choose an optimizer without a closure"
    )


def global_norm(grads: list[Tensor]) -> Tensor:
    """L2 norm over all of *grads*, ``[]``; inf or NaN if any element is.

    A finite element above about 1e19 overflows the squares and counts as non-finite.

    Raises:
        TypeError: A gradient is sparse.
    """
    try:
        norms = tensor_lists.norms(grads)
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
    if not skips_and_unscales(kind, device):
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
