"""Encoded inputs of many transitions, in the form that networks take.

Shapes: N rows, D dense features, T text tokens over all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Text tokens of N rows, concatenated.

    Attributes:
        buckets: ``[T]`` int64, below the field's number of buckets.
        lengths: ``[N]`` int64, tokens per row.
    """

    buckets: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Tokens:
        """Concatenate *rows* of bucket numbers."""
        return cls(
            buckets=torch.tensor([bucket for row in rows for bucket in row], dtype=torch.int64),
            lengths=torch.tensor([len(row) for row in rows], dtype=torch.int64),
        )

    @property
    def offsets(self) -> Tensor:
        """``[N]`` int64: index of each row's first token, as `torch.nn.EmbeddingBag` takes it."""
        return self.lengths.cumsum(0) - self.lengths

    def take(self, rows_M: Tensor) -> Tokens:
        """Select rows, in the given order."""
        lengths_M = self.lengths[rows_M]
        shift_M = self.offsets[rows_M] - (lengths_M.cumsum(0) - lengths_M)
        positions = torch.arange(int(lengths_M.sum())) + shift_M.repeat_interleave(lengths_M)
        return Tokens(buckets=self.buckets[positions], lengths=lengths_M)


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Encoded inputs; they contain no reward, target or outcome.

    Attributes:
        dense: ``[N, D]`` float32: standardised numbers and one-hot labels.
        texts: Tokens of each text field by its key, ``observation.NAME`` or ``action.NAME``.
        out_of_distribution: ``[N]`` bool: whether a number is missing or far outside the range of
            the training data, or a label did not occur there.
    """

    dense: Tensor
    texts: Mapping[str, Tokens]
    out_of_distribution: Tensor

    def __len__(self) -> int:
        return len(self.dense)

    def take(self, rows_M: Tensor) -> Features:
        """Select rows, in the given order; *rows_M* is ``[M]`` int64."""
        texts = {name: tokens.take(rows_M) for name, tokens in self.texts.items()}
        ood_M = self.out_of_distribution[rows_M]
        return Features(dense=self.dense[rows_M], texts=texts, out_of_distribution=ood_M)

    def inputs(self) -> dict[str, Tensor]:
        """Flat tensors: ``dense``, and per text field ``NAME.buckets`` and ``NAME.offsets``."""
        tensors = {"dense": self.dense}
        for name, tokens in self.texts.items():
            tensors[f"{name}.buckets"] = tokens.buckets
            tensors[f"{name}.offsets"] = tokens.offsets
        return tensors
