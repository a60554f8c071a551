"""What the losses of a training were, to tell one that has diverged."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossHistory:
    """Mean losses of a training.

    Attributes:
        first: Of its first steps; NaN before.
        lowest: The lowest one so far; NaN before.
    """

    first: float = math.nan
    lowest: float = math.nan

    def after(self, loss: float | None) -> LossHistory:
        """The history with one more mean *loss*; one that is not finite changes nothing."""
        if loss is None or not math.isfinite(loss):
            return self
        if math.isnan(self.first):
            return LossHistory(loss, loss)
        return LossHistory(self.first, min(self.lowest, loss))

    def has_diverged_at(self, loss: float) -> bool:
        """Whether *loss* is worse than the first one by more than was ever gained since."""
        return loss > self.first + max(self.first - self.lowest, abs(self.first))
