"""Clipping of a gradient norm by the norms before it."""

from __future__ import annotations

import torch
from torch import Tensor

_SMOOTHING = 0.97
_Z_SCORE = 2.5
_WARM_UP_STEPS = 25.0
_EPSILON = 1e-6


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
