"""GSPO: one ratio per sequence, clipped.

B sequences, S predicted tokens.
"""

from __future__ import annotations

from infrastructure.policy.losses.inputs import LossInputs, PolicyLoss
from infrastructure.policy.losses.reductions import sequence_mean
from infrastructure.policy.losses.surrogate import Clip, clipped_surrogate, largest
from infrastructure.policy.masked import bounded_ratio, masked_mean

GSPO_CLIP = Clip(low=3e-4, high=4e-4)
"""Range of the paper's experiments. A mean of log-ratios is much nearer to 0 than one token's."""


def gspo_loss(
    inputs: LossInputs, clip: Clip = GSPO_CLIP, *, denominator: float | None = None
) -> PolicyLoss:
    """Return the GSPO loss.

    ``1/B sum_i -min(s_i A_i, clamp(s_i, 1 - low, 1 + high) A_i)`` with
    ``s_i = exp(1/|y_i| sum_t (log π_it - log π_old,it))``: arXiv:2507.18071, equations 5 and 7.
    The exponent is the mean of the log-ratios. Their sum, a plain importance ratio, leaves any
    useful range within some dozens of tokens.

    A correction drops its tokens from the mean, and multiplies the sequence by
    `LossInputs.sequence_weights_B`. ``A_i`` is the mean of the sequence's advantages.

    Args:
        inputs: Batch.
        clip: Range of the sequence ratio.
        denominator: As in `sequence_mean`.
    """
    kept_BS = inputs.kept_BS
    ratio_B = bounded_ratio(masked_mean(inputs.log_ratio_BS, kept_BS, dim=1))
    advantages_B = masked_mean(inputs.advantages_BS, inputs.mask_BS, dim=1)
    loss_B, clipped_B = clipped_surrogate(ratio_B, advantages_B, clip)
    loss_B = loss_B * inputs.sequence_weights_B
    rows_B1 = inputs.mask_BS.any(dim=1)[:, None]
    stats = {
        "clipped_fraction": masked_mean(clipped_B.to(ratio_B.dtype)[:, None], rows_B1),
        "ratio_max": largest(ratio_B[:, None], rows_B1),
    }
    loss = sequence_mean(loss_B[:, None], rows_B1, denominator=denominator)
    return PolicyLoss(loss, {name: value.detach() for name, value in stats.items()})
