"""How errors of log-probabilities per token add up over a sequence.

B sequences, S predicted tokens, L valid tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.precision_lab.metrics.valid import mean_of, valid_values

POSITIONS = (64, 256, 512)


@dataclass(frozen=True, kw_only=True, slots=True)
class AccumulatedError:
    """Mean over sequences of the error of the sum of the first n log-probabilities, absolute.

    n counts valid tokens of each sequence, so prompts, padding and text between them do not
    count. Sums are float64: those of float32 numbers are then closer to the exact sum than Kahan's
    in float32, which dtype-rlhf uses.

    Attributes:
        accum_err_at_64: Error after 64 tokens, nats, over the sequences that have so many; None if
            no sequence has.
        accum_err_at_256: Likewise.
        accum_err_at_512: Likewise.
        accum_err_final: Error after the last token of each sequence.
    """

    accum_err_at_64: float | None
    accum_err_at_256: float | None
    accum_err_at_512: float | None
    accum_err_final: float


def measure_accumulated_error(
    log_probs_BS: Tensor, exact_log_probs_BS: Tensor, mask_BS: Tensor
) -> AccumulatedError:
    """Measure how far *log_probs_BS* drift from *exact_log_probs_BS*; waits for the device.

    Args:
        log_probs_BS: Log-probabilities of a half computation, in any dtype.
        exact_log_probs_BS: Those of the same tokens and weights in float32 or float64.
        mask_BS: Valid tokens, bool; other positions may hold anything.

    Raises:
        MetricError: Shapes differ, or no token is valid.
    """
    error_BS = accumulated_error(log_probs_BS, exact_log_probs_BS, mask_BS)
    length_B = mask_BS.cpu().sum(1)
    at = [_error_after(error_BS, length_B, position) for position in POSITIONS]
    some_B = length_B > 0
    last_B = error_BS[some_B].gather(1, length_B[some_B, None] - 1)
    return AccumulatedError(
        accum_err_at_64=at[0],
        accum_err_at_256=at[1],
        accum_err_at_512=at[2],
        accum_err_final=mean_of(last_B),
    )


def accumulated_error(log_probs_BS: Tensor, exact_log_probs_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """Absolute running sum of the differences by number of valid tokens, [B, S] float64.

    Column n - 1 belongs to the first n valid tokens of a sequence; beyond its length, a row
    repeats the last one. Arguments and errors as for `measure_accumulated_error`.
    """
    valid_values(mask_BS, log_probs_BS=log_probs_BS, exact_log_probs_BS=exact_log_probs_BS)
    mask_BS = mask_BS.cpu()
    difference_BS = (
        log_probs_BS.detach().cpu().double() - exact_log_probs_BS.detach().cpu().double()
    )
    difference_BS = torch.where(mask_BS, difference_BS, 0.0)
    first_BS = torch.sort((~mask_BS).to(torch.int8), dim=1, stable=True).indices  # valid ones first
    return difference_BS.gather(1, first_BS).cumsum(1).abs()


def _error_after(error_BS: Tensor, length_B: Tensor, tokens: int) -> float | None:
    enough_B = length_B >= tokens
    return mean_of(error_BS[enough_B, tokens - 1]) if enough_B.any() else None
