"""What a correction returns. B sequences, S predicted tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corrected:
    """Weights and kept tokens of one batch; detached.

    Attributes:
        weights_BS: Weight of each token's loss: 1 where only masks apply, 0 at dropped and masked
            positions, NaN where a valid token's log-ratio is NaN.
        kept_BS: Valid tokens that take part in the loss, bool.
        stats: Scalars on the same device by name, see `Correction`.
    """

    weights_BS: Tensor
    kept_BS: Tensor
    stats: Mapping[str, Tensor] = field(default_factory=dict)
