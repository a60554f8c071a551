"""FlowRL: a policy whose probabilities are proportional to exp(β reward), by trajectory balance.

B sequences, S predicted tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from infrastructure.policy.losses.inputs import LossInputs, PolicyLoss
from infrastructure.policy.losses.reductions import sequence_mean
from infrastructure.policy.masked import (
    LOG_RATIO_BOUND,
    bounded_ratio,
    check_token_values,
    masked,
    masked_mean,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowRLOptions:
    """Variant of the loss. The three published ones are the constants below.

    Attributes:
        beta: Factor of the rewards.
        weight_bounds: Range of the importance weight of the trained to the old policy.
        drop_moved_tokens: Leave out tokens that have moved in the direction of their advantage
            beyond *weight_bounds*.
        reference: Whether the target is relative to the reference policy.
    """

    beta: float = 15.0
    weight_bounds: tuple[float, float] = (0.8, 1.28)
    drop_moved_tokens: bool = True
    reference: bool = True

    def __post_init__(self) -> None:
        low, high = self.weight_bounds
        if not 0 < low <= 1 <= high:
            raise ValueError(f"weight_bounds needs 0 < low <= 1 <= high, got {self.weight_bounds}")


FLOWRL_ORIGINAL = FlowRLOptions(
    weight_bounds=(math.exp(-LOG_RATIO_BOUND), math.exp(LOG_RATIO_BOUND)), drop_moved_tokens=False
)
"""Code of Xuekai-Zhu/FlowRL: it computes a clipped weight and uses the unclipped one."""

FLOWRL_PAPER = FlowRLOptions(weight_bounds=(0.8, 1.2), drop_moved_tokens=False)
"""arXiv:2509.15207, whose text clips the weight."""

FLOWRL_CISPO = FlowRLOptions()
"""Branch dev-fp16 of Xuekai-Zhu/verl_FlowRL: masked as in CISPO (arXiv:2506.13585)."""


def flowrl_loss(
    inputs: LossInputs,
    log_partition_B: Tensor | None,
    options: FlowRLOptions = FLOWRL_CISPO,
    *,
    denominator: float | None = None,
) -> PolicyLoss:
    """Return the FlowRL loss.

    With means over the used tokens of a sequence, written <>:

    ``δ_i = log Z(x_i) + <log π> - β <A> - <log π_ref>``,
    ``w_i = clamp(exp(sum_t (log π - log π_old)), low, high)`` without gradient,
    ``L = 1/B sum_i c_i w_i δ_i²``.

    Sources: arXiv:2509.15207 and the two repositories named at the options. Used tokens are those
    that the correction keeps and that the options do not drop: with r = π/π_old, tokens with
    A > 0 and r > high, and with A < 0 and r < low. The published code corrects π against π_old and
    ignores the rollout's log-probabilities; here ``c_i`` (`LossInputs.sequence_weights_B`) is the
    weight of the correction. A sequence without a used token contributes 0; in dev-fp16 it
    contributes (log Z)², which pulls Z to 1.

    Args:
        inputs: Batch. Advantages stand for rewards, as in the published code.
        log_partition_B: ``log Z`` from `LogPartition`, attached to the graph. None: without Z, as
            in the later branch no-log-z.
        options: Variant.
        denominator: As in `sequence_mean`.

    Raises:
        TokenValueError: *log_partition_B* has the wrong shape or is in half precision, or the
            options use a reference and the inputs have none.
    """
    if log_partition_B is not None:
        check_token_values(inputs.mask_BS, log_partition_B=log_partition_B)
    low, high = options.weight_bounds
    log_ratio_BS = inputs.log_ratio_BS.detach()
    advantages_BS = inputs.advantages_BS
    used_BS = inputs.kept_BS
    if options.drop_moved_tokens:
        ratio_BS = bounded_ratio(log_ratio_BS)
        rose_BS = (advantages_BS > 0) & (ratio_BS > high)
        fell_BS = (advantages_BS < 0) & (ratio_BS < low)
        used_BS = used_BS & ~(rose_BS | fell_BS)

    if options.reference:
        residual_B = masked_mean(inputs.reference_log_ratio_BS, used_BS, dim=1)
    else:
        residual_B = masked_mean(inputs.log_probs_BS, used_BS, dim=1)
    residual_B = residual_B - options.beta * masked_mean(advantages_BS, used_BS, dim=1)
    if log_partition_B is not None:
        residual_B = residual_B + log_partition_B

    log_weight_B = masked(log_ratio_BS, used_BS).sum(dim=1)
    weight_B = log_weight_B.clamp(math.log(low), math.log(high)).exp()
    loss_B = inputs.sequence_weights_B * weight_B * residual_B.square()
    loss_B1 = masked(loss_B, used_BS.any(dim=1))[:, None]
    rows_B1 = inputs.mask_BS.any(dim=1)[:, None]
    stats = {
        "residual": masked_mean(residual_B.detach()[:, None], rows_B1),
        "weight": masked_mean(weight_B[:, None], rows_B1),
        "used_fraction": masked_mean(used_BS.to(weight_B.dtype), inputs.mask_BS),
    }
    return PolicyLoss(sequence_mean(loss_B1, rows_B1, denominator=denominator), stats)
