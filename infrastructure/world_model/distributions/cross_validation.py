"""Cross-validation by group: does what was fitted on some groups help on others?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infrastructure.world_model.distributions.metrics import clustered_standard_error

FOLDS = 5
NEEDED_ERRORS = 0.5
"""Standard errors by which a correction must help."""


def fold_numbers(groups: Sequence[str] | None, rows: int) -> tuple[Tensor, int]:
    """Assign groups to folds at random, alike in every call; return fold numbers and their count.

    With fewer than two groups there are no folds.

    Args:
        groups: Group of each row; None if each row is a group of its own.
    """
    if groups is None:
        position_N = torch.arange(rows)
    else:
        position: dict[str, int] = {}
        position_N = torch.tensor([position.setdefault(group, len(position)) for group in groups])
    count = int(position_N.max()) + 1 if rows else 0
    if count < 2:
        return torch.zeros(rows, dtype=torch.int64), 0
    folds = min(FOLDS, count)
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return shuffled[position_N] % folds, folds


def helps(gain_N: Tensor, groups: Sequence[str] | None) -> bool:
    """Whether the mean gain, on rows not fitted on, exceeds half its standard error.

    A higher threshold would keep more standard deviations that are wrong: corrections have few
    parameters, and do little harm where they are not needed.
    """
    groups = [str(row) for row in range(len(gain_N))] if groups is None else groups
    mean = float(gain_N.mean())
    return mean > 0.0 and mean > NEEDED_ERRORS * clustered_standard_error(gain_N, groups)
