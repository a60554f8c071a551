"""Settings that find themselves: the growth interval and the clipping threshold.

Both live on the device and follow from every step alone, so that a training is the same however
often its counters are read, and a resumed one ends where an undisturbed one does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.loss_scale import LossScale

_WIDEST = 32.0  # times growth_interval, or a part of it
_HIGHEST_SCALE = 2.0**127  # float32's largest power of two

_SMOOTHING = 0.97
_Z_SCORE = 2.5
_WARM_UP_STEPS = 25.0
_EPSILON = 1e-6


def loss_scale_of(config: FP16TrainingConfig, device: torch.device) -> LossScale:
    """The loss scale that *config* asks for."""
    return (AdaptiveLossScale if config.adaptive_growth_interval else LossScale)(config, device)


class AdaptiveLossScale(LossScale):
    """A loss scale whose growth interval follows from the overflows.

    At its ceiling a scale overflows once an interval: each growth is a try that fails. Here a try
    that overflows before the next growth doubles the interval, which halves that rate; a try that
    lasts until the next growth halves it, so that a scale far too low climbs ever faster. In n
    steps at the ceiling about ``log2(n / growth_interval)`` are lost and not
    ``n / growth_interval``. The interval stays within a factor of 32 of ``growth_interval``.
    Overflows of a scale that is coming down are no tries, and change nothing.

    Attributes:
        interval: float32 ``[]``: steps without overflow until the next growth.
    """

    def __init__(self, config: FP16TrainingConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.interval = torch.tensor(float(config.growth_interval), device=device)
        self._trying = torch.zeros((), device=device)  # 1 from a growth to what becomes of it

    def update(self, bad: Tensor, bad_loss: Tensor) -> None:
        """Back off, grow or wait; see `LossScale.update`."""
        config = self._config
        overflow = bad - bad_loss
        good = 1.0 - bad
        self.tracker.add_(good.int()).mul_(1 - overflow.int())
        grow = good * (self.tracker >= self.interval)
        self.tracker.mul_(1 - grow.int())
        change = (config.backoff_factor - 1.0) * overflow + (config.growth_factor - 1.0) * grow
        self.scale.mul_(change + 1.0).clamp_(config.min_loss_scale, _HIGHEST_SCALE)
        self.interval.mul_(torch.exp2(self._trying * (overflow - grow)))
        shortest = max(1.0, config.growth_interval / _WIDEST)
        self.interval.clamp_(shortest, config.growth_interval * _WIDEST)
        torch.maximum(grow, self._trying * (1.0 - overflow), out=self._trying)

    def state_dict(self) -> dict[str, float | int]:
        """Scale, tracker, interval and whether a try is on; reads the device."""
        own = {"growth_interval": self.interval.item(), "trying": self._trying.item()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Restore what `state_dict` returned, of this class or of `LossScale`."""
        super().load_state_dict(state)
        self.tracker.fill_(state["growth_tracker"])
        self.interval.fill_(state.get("growth_interval", self._config.growth_interval))
        self._trying.fill_(state.get("trying", 0.0))


class AdaptiveClip:
    """Clips a gradient norm that stands out of the running mean: ZClip.

    Kumar et al. 2025, "ZClip: Adaptive Spike Mitigation for LLM Pre-Training", arXiv 2504.02507,
    with its defaults. With mean m and deviation s of the norms so far, a norm g of z-score
    ``z = (g - m) / s`` above ``z0 = 2.5`` is clipped to ``m + s * z0**2 / z``; then
    ``m = a * m + (1 - a) * g`` and ``s**2 = a * s**2 + (1 - a) * (g - m)**2``, with ``a = 0.97``
    and the clipped g. The first 25 norms only found m and s. A skipped step leaves them alone:
    an infinite norm would stay in a running mean for good.

    Nothing here but `state_dict` reads the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._count, self._mean, self._variance = torch.zeros(3, device=device).unbind()

    def __call__(self, norm: Tensor, bad: Tensor) -> Tensor:
        """What to divide the gradients by; takes *norm* into the statistics.

        Args:
            norm: float32 ``[]``, of the unscaled gradients.
            bad: float32 ``[]``: 1 if the step is skipped, else 0.

        Returns:
            float32 ``[]``, at least 1.
        """
        deviation = self._variance.sqrt() + _EPSILON
        z = (norm - self._mean) / deviation
        bound = self._mean + _Z_SCORE**2 * self._variance.sqrt() / z
        clips = (z > _Z_SCORE) & (self._count >= _WARM_UP_STEPS)
        clipped = torch.where(clips, bound, norm)
        divisor = torch.where(clips, norm / bound, 1.0)
        self._learn(clipped, bad)
        return divisor

    def _learn(self, norm: Tensor, bad: Tensor) -> None:
        """A plain mean and variance of the first norms, then exponential ones."""
        good = bad == 0.0
        self._count.add_(good)
        weight = torch.where(
            self._count <= _WARM_UP_STEPS, 1.0 / self._count.clamp(min=1.0), 1.0 - _SMOOTHING
        )
        mean = self._mean + weight * (norm - self._mean)
        # The plain variance takes one distance from the old mean (Welford 1962), ZClip's none.
        from_mean = torch.where(self._count <= _WARM_UP_STEPS, norm - self._mean, norm - mean)
        variance = self._variance + weight * (from_mean * (norm - mean) - self._variance)
        self._mean.copy_(torch.where(good, mean, self._mean))
        self._variance.copy_(torch.where(good, variance, self._variance))

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
