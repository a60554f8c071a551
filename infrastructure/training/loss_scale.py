"""The loss scale and its growth tracker, both on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.training.config import FP16TrainingConfig


class LossScale:
    """Scale (float32 ``[]``) and growth tracker (int32 ``[]``) of FP16.

    Other precisions do not touch them: they are parked, and come back with FP16. No method but
    `state_dict` reads the device.
    """

    def __init__(self, config: FP16TrainingConfig, device: torch.device) -> None:
        self._config = config
        self.scale = torch.tensor(config.loss_scale, dtype=torch.float32, device=device)
        self.tracker = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, bad: Tensor, bad_loss: Tensor) -> None:
        """Back off, grow or wait, as torch's ``GradScaler.update``, but never below the floor.

        A step whose loss was not finite changes neither scale nor tracker: lowering the scale
        cannot mend a loss.

        Args:
            bad: float32 ``[]``, 1 where the gradient norm or the loss is not finite, else 0.
            bad_loss: float32 ``[]``, 1 where the loss is not finite, else 0.
        """
        self.tracker -= bad_loss.int()  # the update below adds the one back
        torch._amp_update_scale_(
            self.scale,
            self.tracker,
            bad - bad_loss,  # an overflow: the norm alone is to blame
            self._config.growth_factor,
            self._config.backoff_factor,
            self._config.growth_interval,
        )
        self.scale.clamp_(min=self._config.min_loss_scale)

    def leave_floor(self) -> None:
        """Begin anew with the initial scale, if the scale lies at its floor; else do nothing.

        FP16 was left there, not at a level it had found, and thousands of steps would have to
        pass before the scale had grown to one.
        """
        at_floor = self.scale <= self._config.min_loss_scale
        self.scale.copy_(torch.where(at_floor, self._config.loss_scale, self.scale))
        self.tracker.mul_(~at_floor)

    def state_dict(self) -> dict[str, float | int]:
        """Scale and tracker as plain numbers; reads the device."""
        return {"loss_scale": self.scale.item(), "growth_tracker": int(self.tracker.item())}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Restore what `state_dict` returned, held to this configuration's floor and interval."""
        self.scale.fill_(max(state["loss_scale"], self._config.min_loss_scale))
        # torch grows where the tracker meets the interval: one beyond it would never meet it.
        self.tracker.fill_(min(state["growth_tracker"], self._config.growth_interval - 1))
