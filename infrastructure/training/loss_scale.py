"""The loss scale and its growth tracker, both on the device.

Nothing but the ``state_dict`` methods reads the device. Every change follows from the steps alone,
so a training is the same however often its counters are read, and a resumed one ends where an
uninterrupted one does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.torch_internals import scale_update
from infrastructure.training.config import FP16TrainingConfig

_WIDEST = 32.0  # the interval stays within growth_interval times and divided by this
_HIGHEST_SCALE = 2.0**127  # float32's largest power of two


class LossScale:
    """Scale (float32 ``[]``) and growth tracker (int32 ``[]``) of FP16.

    Other precisions do not touch them: they are parked, and come back with FP16.
    """

    def __init__(self, config: FP16TrainingConfig, device: torch.device) -> None:
        self._config = config
        self.scale = torch.tensor(config.loss_scale, dtype=torch.float32, device=device)
        self.tracker = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: Tensor, nonfinite_loss: Tensor) -> None:
        """Back off, grow or wait, like torch's ``GradScaler.update``, but never below the floor.

        A step whose loss was not finite changes neither scale nor tracker: a lower scale cannot
        repair a loss.

        Args:
            found_inf: float32 ``[]``, 1 where the gradient norm or the loss is not finite, else 0.
            nonfinite_loss: float32 ``[]``, 1 where the loss is not finite, else 0.
        """
        self.tracker -= nonfinite_loss.int()  # the update below adds the one back
        scale_update.update_scale(
            self.scale,
            self.tracker,
            found_inf - nonfinite_loss,  # an overflow: the norm alone is not finite
            self._config.growth_factor,
            self._config.backoff_factor,
            self._config.growth_interval,
        )
        self.scale.clamp_(min=self._config.min_loss_scale)

    def leave_floor(self) -> None:
        """Restore the initial scale if the scale lies at its floor; else do nothing.

        A scale at the floor is where FP16 was given up, not a level it had found, and it would
        take thousands of steps to grow to one.
        """
        at_floor = self.scale <= self._config.min_loss_scale
        self.scale.copy_(torch.where(at_floor, self._config.loss_scale, self.scale))
        self.tracker.mul_(~at_floor)

    def state_dict(self) -> dict[str, float | int]:
        """Scale and tracker as plain numbers; reads the device."""
        return {"loss_scale": self.scale.item(), "growth_tracker": int(self.tracker.item())}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Restore what `state_dict` returned, within this configuration's floor and interval."""
        self.scale.fill_(max(state["loss_scale"], self._config.min_loss_scale))
        # torch grows where the tracker equals the interval: one beyond it would never equal it.
        self.tracker.fill_(min(state["growth_tracker"], self._config.growth_interval - 1))


class AdaptiveLossScale(LossScale):
    """A loss scale whose growth interval follows from the overflows.

    At its ceiling a scale overflows once per interval: each growth is a trial that fails. Here a
    trial that overflows before the next growth doubles the interval, which halves that rate; a
    trial that lasts until the next growth halves it, so that a scale far too low climbs ever
    faster. In n steps at the ceiling about ``log2(n / growth_interval)`` are lost instead of
    ``n / growth_interval``. The interval stays within a factor of 32 of ``growth_interval``.
    Overflows while the scale is coming down are not trials, and change nothing.

    Attributes:
        interval: float32 ``[]``: steps without overflow until the next growth.
    """

    def __init__(self, config: FP16TrainingConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.interval = torch.tensor(float(config.growth_interval), device=device)
        self._trying = torch.zeros((), device=device)  # 1 from a growth until its outcome

    def update(self, found_inf: Tensor, nonfinite_loss: Tensor) -> None:
        """Back off, grow or wait; see `LossScale.update`."""
        config = self._config
        overflow = found_inf - nonfinite_loss
        isfinite = 1.0 - found_inf
        self.tracker.add_(isfinite.int()).mul_(1 - overflow.int())
        grow = isfinite * (self.tracker >= self.interval)
        self.tracker.mul_(1 - grow.int())
        change = (config.backoff_factor - 1.0) * overflow + (config.growth_factor - 1.0) * grow
        self.scale.mul_(change + 1.0).clamp_(config.min_loss_scale, _HIGHEST_SCALE)
        self.interval.mul_(torch.exp2(self._trying * (overflow - grow)))
        shortest = max(1.0, config.growth_interval / _WIDEST)
        self.interval.clamp_(shortest, config.growth_interval * _WIDEST)
        torch.maximum(grow, self._trying * (1.0 - overflow), out=self._trying)

    def state_dict(self) -> dict[str, float | int]:
        """Scale, tracker, interval and whether a trial is under way; reads the device."""
        extra = {"growth_interval": self.interval.item(), "trying": self._trying.item()}
        return {**super().state_dict(), **extra}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Restore what `state_dict` returned, of this class or of `LossScale`."""
        super().load_state_dict(state)
        self.tracker.fill_(min(state["growth_tracker"], torch.iinfo(self.tracker.dtype).max))
        self.interval.fill_(state.get("growth_interval", self._config.growth_interval))
        self._trying.fill_(state.get("trying", 0.0))


def make_loss_scale(config: FP16TrainingConfig, device: torch.device) -> LossScale:
    """The kind of loss scale that *config* asks for."""
    return (AdaptiveLossScale if config.adaptive_growth_interval else LossScale)(config, device)
