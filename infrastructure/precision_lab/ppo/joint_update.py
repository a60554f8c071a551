"""One optimizer and one clip for all trained roles, with or without FP32 master weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from infrastructure.precision_lab.metrics import gradient_norm
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.loss_scale import LossScale


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateOutcome:
    """Outcome of one update of the weights.

    Attributes:
        applied: Whether the weights were updated; False if a gradient was not finite.
        loss_scale: Scale of this update, 1 without one.
        gradient_norm: Norm of all unscaled gradients before clipping.
        role_norms: The same of each group of parameters.
        update_stagnation_rate: Share of the weights that the update left as they were.
    """

    applied: bool
    loss_scale: float
    gradient_norm: float
    role_norms: list[float]
    update_stagnation_rate: float


class JointUpdate:
    """AdamW over the parameters of all trained roles.

    It computes in float32 with float32 moments under every preset, so that presets differ in
    nothing but what they declare. Weights stored in float32 are its own parameters: the master
    weights. Weights stored in a half type are cast up for the update and rounded after it; what
    rounding loses is lost, as in a training without master weights. Waits for the device.

    Args:
        groups: Parameters of each role.
        learning_rate: Of AdamW without weight decay.
        max_grad_norm: Bound of the norm of all gradients together.
        scaled: Whether the loss is scaled, because a trained role computes in FP16.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Parameter]],
        *,
        learning_rate: float,
        max_grad_norm: float,
        scaled: bool,
    ) -> None:
        self._groups = [list(group) for group in groups]
        self._stored = [parameter for group in self._groups for parameter in group]
        self._float32 = [
            parameter if parameter.dtype == torch.float32 else Parameter(parameter.detach().float())
            for parameter in self._stored
        ]
        self._max_grad_norm = max_grad_norm
        self._optimizer = torch.optim.AdamW(
            self._float32, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        device = self._stored[0].device
        self._scale = LossScale(FP16TrainingConfig(), device) if scaled else None

    @property
    def has_masters(self) -> bool:
        """Whether every trained weight is float32."""
        return all(
            stored is master for stored, master in zip(self._stored, self._float32, strict=True)
        )

    def step(self, loss: Tensor) -> UpdateOutcome:
        """Backpropagate *loss*, [] float32, and update all weights, or none."""
        scale = 1.0 if self._scale is None else self._scale.scale.item()
        before = [parameter.detach().clone() for parameter in self._stored]
        (loss * scale).backward()
        norms = [gradient_norm(group, scale=scale) for group in self._groups]
        norm = torch.tensor(norms, dtype=torch.float64).square().sum().sqrt().item()
        applied = bool(torch.tensor(norm).isfinite()) and bool(loss.isfinite())
        if applied:
            self._apply(factor=min(1.0, self._max_grad_norm / (norm + 1e-6)) / scale)
        for parameter in self._stored:
            parameter.grad = None
        if self._scale is not None:
            flags = torch.tensor([not applied, not loss.isfinite()], device=loss.device).float()
            self._scale.update(flags[0], flags[1])
        same = sum(int((old == new).sum()) for old, new in zip(before, self._stored, strict=True))
        return UpdateOutcome(
            applied=applied,
            loss_scale=scale,
            gradient_norm=norm,
            role_norms=norms,
            update_stagnation_rate=same / sum(parameter.numel() for parameter in self._stored),
        )

    @torch.no_grad()
    def _apply(self, factor: float) -> None:
        for stored, float32 in zip(self._stored, self._float32, strict=True):
            if stored.grad is not None:
                float32.grad = stored.grad.float().mul_(factor)
        self._optimizer.step()
        for stored, float32 in zip(self._stored, self._float32, strict=True):
            float32.grad = None
            if stored is not float32:
                stored.copy_(float32)
                float32.copy_(stored)  # no master weight: the rest is lost
