"""Encoded inputs of many transitions, as a network takes them.

Shapes: N rows, D dense features, T text tokens over all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Text tokens of N rows, one after the other.

    Attributes:
        buckets: ``[T]`` int64, below the field's number of buckets.
        lengths: ``[N]`` int64, tokens per row.
    """

    buckets: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Tokens:
        """Lay *rows* of bucket numbers end to end."""
        return cls(
            buckets=torch.tensor([bucket for row in rows for bucket in row], dtype=torch.int64),
            lengths=torch.tensor([len(row) for row in rows], dtype=torch.int64),
        )

    @property
    def offsets(self) -> Tensor:
        """``[N]`` int64: where each row's tokens begin, what `torch.nn.EmbeddingBag` asks for."""
        return self.lengths.cumsum(0) - self.lengths

    def take(self, rows_M: Tensor) -> Tokens:
        """The tokens of the given rows, in that order."""
        lengths_M = self.lengths[rows_M]
        shift_M = self.offsets[rows_M] - (lengths_M.cumsum(0) - lengths_M)
        positions = torch.arange(int(lengths_M.sum())) + shift_M.repeat_interleave(lengths_M)
        return Tokens(buckets=self.buckets[positions], lengths=lengths_M)


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Encoded inputs; they hold nothing of reward, targets or outcome.

    Attributes:
        dense: ``[N, D]`` float32: standardised numbers and one-hot labels.
        texts: Text field to its tokens; keys read ``observation.NAME`` or ``action.NAME``.
        outside: ``[N]`` bool: whether a number lies far from what was seen or is none, or a label
            was never seen.
    """

    dense: Tensor
    texts: Mapping[str, Tokens]
    outside: Tensor

    def __len__(self) -> int:
        return len(self.dense)

    def take(self, rows_M: Tensor) -> Features:
        """The given rows, in that order; *rows_M* is int64."""
        texts = {name: tokens.take(rows_M) for name, tokens in self.texts.items()}
        return Features(dense=self.dense[rows_M], texts=texts, outside=self.outside[rows_M])

    def inputs(self) -> dict[str, Tensor]:
        """Flat tensors: ``dense``, and per text field ``NAME.buckets`` and ``NAME.offsets``."""
        tensors = {"dense": self.dense}
        for name, tokens in self.texts.items():
            tensors[f"{name}.buckets"] = tokens.buckets
            tensors[f"{name}.offsets"] = tokens.offsets
        return tensors
