"""The clipped surrogate that PPO and GRPO share.

B sequences, S predicted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.policy.losses.inputs import LossInputs, PolicyLoss
from infrastructure.policy.losses.reductions import Reduction
from infrastructure.policy.masked import bounded_ratio, masked_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Clip:
    """Range of a ratio beyond which it gives no further gain.

    Attributes:
        low: The ratio is clipped below ``1 - low``.
        high: And above ``1 + high``. DAPO's "clip-higher" is 0.28 (arXiv:2503.14476).
        dual: Bound of the loss of a token with a negative advantage, as a multiple of
            ``|advantage|``; verl uses 3 (arXiv:1912.09729, equation 5). None: not bounded, a
            token whose probability rose to e^20 times weighs 4.9e8.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 or not self.high >= 0:
            raise ValueError(
                f"clip needs 0 <= low <= 1 and high >= 0, got low={self.low}, high={self.high}"
            )
        if self.dual is not None and not self.dual > 1 + self.high:
            raise ValueError(f"dual must be above 1 + high = {1 + self.high}, got {self.dual}")


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """Return the negative surrogate elementwise, and where it is clipped (bool).

    ``-min(ratio A, clamp(ratio, 1 - low, 1 + high) A)``: PPO (arXiv:1707.06347, equation 7). Where
    it is clipped, its gradient is zero.
    """
    gain = ratio * advantages
    bounded_gain = ratio.clamp(1 - clip.low, 1 + clip.high) * advantages
    loss = -torch.minimum(gain, bounded_gain)
    clipped = bounded_gain < gain
    if clip.dual is not None:
        limit = -clip.dual * advantages
        beyond = (advantages < 0) & (loss > limit)
        loss = torch.where(beyond, limit, loss)
        clipped = clipped | beyond
    return loss, clipped


def token_surrogate_loss(inputs: LossInputs, clip: Clip, reduction: Reduction) -> PolicyLoss:
    """Return the reduced surrogate with one ratio per token; each token times its weight."""
    ratio_BS = bounded_ratio(inputs.log_ratio_BS)
    loss_BS, clipped_BS = clipped_surrogate(ratio_BS, inputs.advantages_BS, clip)
    stats = {
        "clipped_fraction": masked_mean(clipped_BS.to(ratio_BS.dtype), inputs.mask_BS),
        "ratio_max": largest(ratio_BS, inputs.mask_BS),
    }
    return PolicyLoss(reduction(inputs.weighted(loss_BS), inputs.mask_BS), stats)


def largest(values: Tensor, mask: Tensor) -> Tensor:
    """Return the largest valid value, detached; 0 if none is valid."""
    low = values.detach().masked_fill(~mask, -torch.inf).amax()
    return torch.where(mask.any(), low, torch.zeros_like(low))
