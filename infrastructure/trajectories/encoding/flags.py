"""What is odd about the fields of encoded rows."""

from __future__ import annotations

import torch
from torch import Tensor

IS_MISSING = "is missing, which the training data does not explain: it counts as average"
IS_FAR = "is far outside the training data"
IS_UNSEEN = "has a label that did not occur in the training data: it counts as average"
IS_BLANK = "is blank, which the training data does not explain: it counts as average"
IS_UNKNOWN = "has no word that occurred in the training data: it counts as average"
IS_CUT = "is longer than 1,048,576 characters: the rest is cut"


class Flags:
    """Collects what is odd about fields, by row.

    Attributes:
        out_of_distribution_N: Whether a row is out of distribution, bool.
        by_text: Rows of each sentence, bool.
        unknown: Of each field that has some, which of its first encoded columns are not known,
            ``[N, D]`` bool.
    """

    def __init__(self, rows: int) -> None:
        self.out_of_distribution_N = torch.zeros(rows, dtype=torch.bool)
        self.by_text = dict[str, Tensor]()
        self.unknown = dict[str, Tensor]()

    def add(self, key: str, what: str, odd_N: Tensor, *, shrinks: bool = False) -> None:
        """Flag the rows *odd_N* of the field *key*.

        Args:
            shrinks: Whether the rows are out of distribution.
        """
        if bool(odd_N.any()):
            self.by_text[f"{key} {what}"] = odd_N
            if shrinks:
                self.out_of_distribution_N |= odd_N

    def add_unknown(self, key: str, unknown_ND: Tensor) -> None:
        """Note which of the first columns of the field *key* are not known, by row."""
        if bool(unknown_ND.any()):
            self.unknown[key] = unknown_ND
