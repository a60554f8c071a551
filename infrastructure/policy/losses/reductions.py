"""From losses per token to one number. Which one decides how the length of an answer counts.

B sequences, S predicted tokens. Sequences without a valid token (padding rows, empty completions)
do not count. The denominator may be given: with gradient accumulation or several ranks, the mean
of means weights the tokens of a short micro-batch more than those of a long one. Pass the whole
step's number of tokens (or sequences) divided by the number of micro-batches (times ranks) instead,
so that the trainer's mean over micro-batches becomes the mean over the step. A step without a valid
token, whose denominator is 0, has the loss 0.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from infrastructure.policy.masked import masked, masked_mean

Reduction = Callable[[Tensor, Tensor], Tensor]
"""Maps values ``[B, S]`` and their mask ``[B, S]`` to a scalar. Bind options by `partial`."""


def token_mean(values_BS: Tensor, mask_BS: Tensor, *, denominator: float | None = None) -> Tensor:
    """Return the mean over all valid tokens: each token counts the same.

    ``sum_it v_it / sum_i |y_i|``: DAPO (arXiv:2503.14476, section 3.3), PPO.

    Args:
        values_BS: Values, float.
        mask_BS: Valid tokens, bool.
        denominator: Number of tokens to divide by instead of those in *mask_BS*.
    """
    if denominator is None:
        return masked_mean(values_BS, mask_BS)
    return _divided(masked(values_BS, mask_BS).sum(), denominator)


def sequence_mean(
    values_BS: Tensor, mask_BS: Tensor, *, denominator: float | None = None
) -> Tensor:
    """Return the mean over sequences of the mean over tokens: each sequence counts the same.

    ``1/B sum_i 1/|y_i| sum_t v_it``: GRPO (arXiv:2402.03300, equation 3). A token of a long wrong
    answer weighs less than one of a short wrong answer, which rewards length; see
    `constant_length`.

    Args:
        values_BS: Values, float.
        mask_BS: Valid tokens, bool.
        denominator: Number of sequences to divide by instead of those with a valid token.
    """
    return _per_sequence(masked_mean(values_BS, mask_BS, dim=1).sum(), mask_BS, denominator)


def constant_length(
    values_BS: Tensor, mask_BS: Tensor, *, max_length: int, denominator: float | None = None
) -> Tensor:
    """Return the mean over sequences of the sum over tokens divided by one constant.

    ``1/B sum_i 1/max_length sum_t v_it``: Dr.GRPO (arXiv:2503.20783, section 3.2). The constant
    must not depend on the batch: the padded width of a batch does.

    Args:
        values_BS: Values, float.
        mask_BS: Valid tokens, bool.
        max_length: Limit of new tokens of the rollout.
        denominator: Number of sequences to divide by instead of those with a valid token.
    """
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")
    return _per_sequence(masked(values_BS, mask_BS).sum() / max_length, mask_BS, denominator)


def _per_sequence(total: Tensor, mask_BS: Tensor, denominator: float | None) -> Tensor:
    if denominator is None:
        return total / mask_BS.any(dim=1).sum().clamp(min=1)
    return _divided(total, denominator)


def _divided(total: Tensor, denominator: float) -> Tensor:
    return total / denominator if denominator else total
