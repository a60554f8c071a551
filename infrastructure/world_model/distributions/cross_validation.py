"""Cross-validation by group: does what was fitted on some groups help on others?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infrastructure.world_model.distributions.metrics import clustered_standard_error

FOLDS = 5


def fold_numbers(groups: Sequence[str] | None, rows: int) -> tuple[Tensor, int]:
    """Assign rows to folds so that no group is in two; return fold numbers and their count.

    Args:
        groups: Group of each row; None if each row is a group of its own.
    """
    if groups is None:
        position_N = torch.arange(rows)
    else:
        position: dict[str, int] = {}
        position_N = torch.tensor([position.setdefault(group, len(position)) for group in groups])
    count = int(position_N.max()) + 1 if rows else 0
    folds = min(FOLDS, count)
    return position_N % max(1, folds), folds if folds > 1 else 0


def helps(gain_N: Tensor, groups: Sequence[str] | None) -> bool:
    """Whether the mean gain, on rows not fitted on, exceeds its standard error."""
    mean = float(gain_N.mean())
    if mean <= 0.0:
        return False
    if groups is None:
        return len(gain_N) > 1 and mean > float(gain_N.std()) / len(gain_N) ** 0.5
    return mean > clustered_standard_error(gain_N, groups)
