"""GRPO and Dr.GRPO: the clipped surrogate with advantages relative to a group of completions."""

from __future__ import annotations

from functools import partial

from infrastructure.policy.losses.inputs import LossInputs, PolicyLoss
from infrastructure.policy.losses.reductions import Reduction, constant_length, sequence_mean
from infrastructure.policy.losses.surrogate import Clip, token_surrogate_loss


def grpo_loss(
    inputs: LossInputs, clip: Clip | None = None, *, reduction: Reduction = sequence_mean
) -> PolicyLoss:
    """Return the GRPO loss.

    ``1/B sum_i 1/|y_i| sum_t -min(r_it A_i, clamp(r_it, 1 - low, 1 + high) A_i)`` with
    ``r = exp(log π - log π_old)`` and the advantages of `grpo_advantages`: arXiv:2402.03300,
    equation 3. Its KL term is `kl_loss` times a coefficient, to be added. DAPO is this with
    `token_mean` and ``Clip(high=0.28)``.

    Args:
        inputs: Batch; a correction multiplies the loss of each token.
        clip: Range of the ratio, 0.2 on both sides if None.
        reduction: From tokens to the scalar.
    """
    return token_surrogate_loss(inputs, clip or Clip(), reduction)


def dr_grpo_loss(inputs: LossInputs, clip: Clip | None = None, *, max_length: int) -> PolicyLoss:
    """Return the Dr.GRPO loss: GRPO's without its bias towards long wrong answers.

    ``1/(B max_length) sum_it -min(r_it A_i, clamp(r_it, 1 - low, 1 + high) A_i)`` with the
    advantages of `dr_grpo_advantages`: arXiv:2503.20783, section 3.2.

    Args:
        inputs: Batch; a correction multiplies the loss of each token.
        clip: Range of the ratio, 0.2 on both sides if None.
        max_length: Limit of new tokens of the rollout: one constant for the whole training.
    """
    reduction = partial(constant_length, max_length=max_length)
    return token_surrogate_loss(inputs, clip or Clip(), reduction)
