"""The loss scale and everything counted beside it: all of it stays on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.precision import Precision


class LossScale:
    """Scale, growth tracker and outcome counters as tensors of shape ``[]``.

    Outside FP16 the scale in force is 1 and frozen; FP16's own scale and tracker are parked and
    come back with FP16. No method reads the device except `state_dict`.
    """

    def __init__(self, config: FP16TrainingConfig, device: torch.device) -> None:
        self._config = config
        self.scale = torch.tensor(config.loss_scale, dtype=torch.float32, device=device)
        self.tracker = torch.zeros((), dtype=torch.int32, device=device)
        self._one = torch.ones((), dtype=torch.float32, device=device)
        self.overflow_steps = torch.zeros((), dtype=torch.int64, device=device)
        self.nonfinite_loss_steps = torch.zeros((), dtype=torch.int64, device=device)

    def in_force(self, precision: Precision) -> Tensor:
        """The scale under *precision*, float32 ``[]``."""
        return self.scale if precision.scales_loss else self._one

    def count(self, bad_norm: Tensor, bad_loss: Tensor) -> Tensor:
        """Count one attempted step and return whether it overflowed.

        A non-finite loss is no overflow: lowering the scale cannot mend it.

        Args:
            bad_norm: bool ``[]``, the gradient norm is not finite.
            bad_loss: bool ``[]``, the loss is not finite.

        Returns:
            bool ``[]``.
        """
        overflow = bad_norm > bad_loss  # and-not, in one operation
        self.overflow_steps += overflow
        self.nonfinite_loss_steps += bad_loss
        return overflow

    def update(self, overflow: Tensor, bad_loss: Tensor) -> None:
        """Back off, grow or wait, as torch's ``GradScaler.update``, but never below the floor.

        A step whose loss was not finite changes neither scale nor tracker.

        Args:
            overflow: bool ``[]``.
            bad_loss: bool ``[]``.
        """
        self.tracker.add_(bad_loss, alpha=-1)  # the update below adds the one back
        torch._amp_update_scale_(
            self.scale,
            self.tracker,
            overflow.float(),
            self._config.growth_factor,
            self._config.backoff_factor,
            self._config.growth_interval,
        )
        self.scale.clamp_(min=self._config.min_loss_scale)

    def state_dict(self) -> dict[str, float | int]:
        """Everything a checkpoint needs, as plain numbers; reads the device."""
        return {
            "loss_scale": self.scale.item(),
            "growth_tracker": int(self.tracker.item()),
            "overflow_steps": int(self.overflow_steps.item()),
            "nonfinite_loss_steps": int(self.nonfinite_loss_steps.item()),
        }

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Restore what `state_dict` returned; the scale is held to this configuration's floor."""
        self.scale.fill_(max(state["loss_scale"], self._config.min_loss_scale))
        self.tracker.fill_(state["growth_tracker"])
        self.overflow_steps.fill_(state["overflow_steps"])
        self.nonfinite_loss_steps.fill_(state["nonfinite_loss_steps"])
