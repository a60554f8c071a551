"""What a policy loss is computed from, checked once, and what it returns.

B sequences, S predicted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from infrastructure.policy.corrections.corrected import Corrected
from infrastructure.policy.masked import (
    TokenValueError,
    check_token_values,
    masked,
    masked_log_ratio,
    masked_mean,
)


class PolicyLoss(NamedTuple):
    """A loss and what it saw.

    Attributes:
        loss: Scalar, attached to the graph.
        stats: Detached scalars on the same device, by name. Reading them waits for the device.
    """

    loss: Tensor
    stats: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossInputs:
    """Values per token of one batch. Gradients flow through `log_probs_BS` only.

    Values must be finite at valid tokens; NaN there makes the loss NaN, which the trainer counts
    and skips. Values at masked positions are ignored.

    Attributes:
        log_probs_BS: Log-probabilities of the trained policy, attached to the graph.
        old_log_probs_BS: Those of the policy before the round's updates, by the same function as
            `log_probs_BS`. (Those of the rollout belong into the correction: as the old policy's,
            they would hide the mismatch in the clipping.)
        advantages: Shape ``[B]`` or ``[B, S]``.
        mask_BS: Tokens that the policy generated, bool.
        reference_log_probs_BS: Those of the frozen reference, where the loss uses one.
        correction: Weights and kept tokens against the mismatch of rollout and trainer.
    """

    log_probs_BS: Tensor
    old_log_probs_BS: Tensor
    advantages: Tensor
    mask_BS: Tensor
    reference_log_probs_BS: Tensor | None = None
    correction: Corrected | None = None

    def __post_init__(self) -> None:
        named = {"log_probs_BS": self.log_probs_BS, "old_log_probs_BS": self.old_log_probs_BS}
        named["advantages_B" if self.advantages.ndim == 1 else "advantages_BS"] = self.advantages
        if self.reference_log_probs_BS is not None:
            named["reference_log_probs_BS"] = self.reference_log_probs_BS
        if self.correction is not None:
            named["weights_BS"] = self.correction.weights_BS
        check_token_values(self.mask_BS, **named)

    @property
    def advantages_BS(self) -> Tensor:
        """Advantage of each token, detached; 0 at masked positions."""
        advantages = self.advantages.detach()
        if advantages.ndim == 1:
            advantages = advantages[:, None].expand(self.mask_BS.shape)
        return masked(advantages, self.mask_BS)

    @property
    def log_ratio_BS(self) -> Tensor:
        """Log-ratio of the trained to the old policy, not clamped; 0 at masked positions."""
        return masked_log_ratio(self.log_probs_BS, self.old_log_probs_BS.detach(), self.mask_BS)

    @property
    def reference_log_ratio_BS(self) -> Tensor:
        """Log-ratio of the trained policy to the reference; 0 at masked positions.

        Raises:
            TokenValueError: There is no reference.
        """
        if self.reference_log_probs_BS is None:
            raise TokenValueError(
                "this loss needs reference_log_probs_BS: compute them by token_log_probs with the "
                "frozen reference"
            )
        return masked_log_ratio(
            self.log_probs_BS, self.reference_log_probs_BS.detach(), self.mask_BS
        )

    @property
    def kept_BS(self) -> Tensor:
        """Valid tokens that the correction keeps, bool."""
        if self.correction is None:
            return self.mask_BS
        return self.mask_BS & self.correction.kept_BS

    @property
    def sequence_weights_B(self) -> Tensor:
        """Mean weight of each sequence's tokens; dropped tokens count as 0.

        What a loss per sequence multiplies by: 1 without a correction, and exactly the weight of
        a correction that gives all tokens of a sequence the same.
        """
        return masked_mean(self.weighted(torch.ones_like(self.log_probs_BS)), self.mask_BS, dim=1)

    def weighted(self, values_BS: Tensor) -> Tensor:
        """Return *values_BS* times the correction's weights; 0 at dropped and masked positions."""
        if self.correction is not None:
            values_BS = values_BS * self.correction.weights_BS.detach()
        return masked(values_BS, self.kept_BS)
