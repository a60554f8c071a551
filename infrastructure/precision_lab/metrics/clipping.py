"""How PPO's clipping meets ratios that a type has rounded.

B sequences, S predicted tokens, N valid tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infrastructure.events.precision_state import PrecisionName
from infrastructure.precision_lab.metrics.valid import mean_of, rounded, valid_values

CLIP = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipMetrics:
    """Ratios rho = exp(log pi - log pi_old) of the valid tokens of one batch.

    Attributes:
        clip_fraction: Share of tokens with rho < 1 - clip or rho > 1 + clip, whether or not the
            sign of their advantage makes PPO clip them. A NaN is outside.
        ratio_unique_in_range: Number of distinct rho inside of it, bounds included. Few of them
            beside the same batch in FP32 mean that the type has made the objective a staircase.
        ratio_one_frac: Share of tokens with rho exactly 1. All of them in the first update of a
            batch, and at each update if the old log-probabilities were computed again.
    """

    clip_fraction: float
    ratio_unique_in_range: int
    ratio_one_frac: float


def measure_clipping(
    log_probs_BS: Tensor,
    old_log_probs_BS: Tensor,
    mask_BS: Tensor,
    *,
    precision: PrecisionName = "fp32",
    clip: float = CLIP,
) -> ClipMetrics:
    """Measure the ratios as computed in *precision*; waits for the device.

    Both log-probabilities are rounded to *precision*, their difference and its exponential too.
    The comparison with the bounds is made in float64: 1.2 is not a number of a half type.

    Args:
        log_probs_BS: Log-probabilities of the taken tokens under the weights at hand.
        old_log_probs_BS: Those captured once, before the first update of the batch.
        mask_BS: Valid tokens, bool; other positions may hold anything.
        precision: Type in which the ratio is computed.
        clip: Half width of PPO's range, from 0 to 1.

    Raises:
        MetricError: Shapes differ, or no token is valid.
    """
    new_N, old_N = valid_values(
        mask_BS, log_probs_BS=log_probs_BS, old_log_probs_BS=old_log_probs_BS
    )
    ratio_N = (rounded(new_N, precision) - rounded(old_N, precision)).exp().double()
    inside_N = (ratio_N >= 1 - clip) & (ratio_N <= 1 + clip)
    return ClipMetrics(
        clip_fraction=mean_of(~inside_N),
        ratio_unique_in_range=ratio_N[inside_N].unique().numel(),
        ratio_one_frac=mean_of(ratio_N == 1),
    )
