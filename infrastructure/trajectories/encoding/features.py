"""Encoded inputs of many transitions, in the form that networks take.

Shapes: N rows, D dense features, T text tokens over all rows, B buckets of a text field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

LINEAR_PREFIX = "linear."

_ALIGNMENT_BYTES = 64  # of a tensor that torch allocates; matrix kernels may depend on it
_SHARED_BUCKETS = 64  # up to so many, a product with shares is faster than a sum over tokens
_SHARES = 1 << 22  # at most so many for a field: 16 MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Text tokens of N rows, concatenated.

    Attributes:
        buckets: ``[T]`` int64, below the field's number of buckets, or of its rows in tables of
            weights once they are renumbered.
        lengths: ``[N]`` int64, tokens per row.
        weights: ``[T]`` float32, factor of each token's embedding. The squares of a row add up to
            1, unless the row stands for an unknown text; those of words and of characters do.
        shares: ``[N, B]`` float32, weights of each bucket's tokens, for fields of few buckets; else
            None. It says what the tokens say.
    """

    buckets: Tensor
    lengths: Tensor
    weights: Tensor
    shares: Tensor | None = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Tokens:
        """Concatenate *rows* of bucket numbers; all tokens of a row have one weight."""
        buckets_T = torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype=np.int64))
        return cls._evenly(buckets_T, torch.tensor(list(map(len, rows)), dtype=torch.int64))

    @classmethod
    def _evenly(cls, buckets_T: Tensor, lengths_N: Tensor) -> Tokens:
        weights_N = lengths_N.clamp(min=1).float().rsqrt()
        weights_T = weights_N.repeat_interleave(lengths_N, output_size=len(buckets_T))
        return cls(buckets=buckets_T, lengths=lengths_N, weights=weights_T)

    @classmethod
    def join(cls, parts: Sequence[Tokens]) -> Tokens:
        """Concatenate the rows of *parts*, which have no shares."""
        return cls(
            buckets=torch.cat([part.buckets for part in parts]),
            lengths=torch.cat([part.lengths for part in parts]),
            weights=torch.cat([part.weights for part in parts]),
        )

    def split(self) -> Iterator[Tokens]:
        """Yield each row, without shares."""
        counts = self.lengths.tolist()
        columns = self.buckets.split(counts), self.lengths.split(1), self.weights.split(counts)
        for buckets, lengths, weights in zip(*columns, strict=True):
            yield Tokens(buckets=buckets, lengths=lengths, weights=weights)

    def with_shares(self, buckets: int) -> Tokens:
        """Add `shares` of so many *buckets*, unless they are too many."""
        rows = len(self.lengths)
        if buckets > _SHARED_BUCKETS or rows * buckets > _SHARES:
            return self
        places_T = torch.arange(0, rows * buckets, buckets).repeat_interleave(self.lengths)
        shares_NB = (places_T + self.buckets).bincount(self.weights, minlength=rows * buckets)
        return replace(self, shares=shares_NB.float().view(rows, buckets))

    def renumber(self, numbers_B: Tensor) -> Tokens:
        """Replace each bucket by its number; drop tokens whose bucket has the number -1.

        All tokens of a row have one weight, as in `of`.

        Args:
            numbers_B: Number of each bucket, int64.
        """
        numbers_T = numbers_B.index_select(0, self.buckets)
        kept_T = numbers_T >= 0
        if bool(kept_T.all()):
            return Tokens._evenly(numbers_T, self.lengths)
        return Tokens._evenly(numbers_T[kept_T], self._lengths_of(kept_T))

    def first(self, buckets: int) -> Tokens:
        """Drop the tokens of all but the first *buckets*; the others keep their weights."""
        kept_T = self.buckets < buckets
        if bool(kept_T.all()):
            return self
        return Tokens(
            buckets=self.buckets[kept_T],
            lengths=self._lengths_of(kept_T),
            weights=self.weights[kept_T],
        )

    def _lengths_of(self, kept_T: Tensor) -> Tensor:
        """Number of kept tokens per row."""
        row_of_token = torch.arange(len(self.lengths)).repeat_interleave(self.lengths)
        return row_of_token[kept_T].bincount(minlength=len(self.lengths))

    @property
    def offsets(self) -> Tensor:
        """``[N]`` int64: index of each row's first token, as `torch.nn.EmbeddingBag` takes it."""
        return self.lengths.cumsum(0) - self.lengths

    def take(self, rows_M: Tensor) -> Tokens:
        """Select rows, in the given order."""
        lengths_M = self.lengths.index_select(0, rows_M)
        ends_M = lengths_M.cumsum(0)
        shift_M = self.offsets.index_select(0, rows_M) - (ends_M - lengths_M)
        count = int(ends_M[-1]) if len(rows_M) else 0
        positions = shift_M.repeat_interleave(lengths_M, output_size=count)
        positions += torch.arange(count)
        return Tokens(
            buckets=self.buckets.index_select(0, positions),
            lengths=lengths_M,
            weights=self.weights.index_select(0, positions),
            shares=None if self.shares is None else self.shares.index_select(0, rows_M),
        )

    def inputs(self, name: str) -> dict[str, Tensor]:
        """Flat tensors ``NAME.buckets``, ``.weights`` and ``.offsets``, perhaps ``.shares``."""
        tensors = {
            f"{name}.buckets": self.buckets,
            f"{name}.offsets": self.offsets,
            f"{name}.weights": self.weights,
        }
        if self.shares is not None:
            tensors[f"{name}.shares"] = self.shares
        return tensors

    def split_inputs(self, name: str, size: int) -> Iterator[dict[str, Tensor]]:
        """Yield `inputs` of each *size* rows in turn; the last may be fewer."""
        offsets_N = self.offsets
        starts_N = offsets_N[::size].repeat_interleave(size)[: len(offsets_N)]
        bounds = [*(offsets_N[::size].tolist() or [0]), len(self.buckets)]
        counts = [end - start for start, end in pairwise(bounds)]
        own_offsets = (offsets_N - starts_N).split(size)
        shares = None if self.shares is None else iter(split_rows(self.shares, size))
        tokens = zip(self.buckets.split(counts), self.weights.split(counts), strict=True)
        for (buckets, weights), offsets in zip(tokens, own_offsets, strict=True):
            tensors = {
                f"{name}.buckets": buckets,
                f"{name}.offsets": offsets,
                f"{name}.weights": weights,
            }
            if shares is not None:
                tensors[f"{name}.shares"] = next(shares)
            yield tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Encoded inputs; they contain no reward, target or outcome.

    Attributes:
        dense: ``[N, D]`` float32: standardised numbers, one-hot labels, marks of missing values.
        texts: Tokens of each text field by its key, ``observation.NAME`` or ``action.NAME``.
        linear_texts: The same for the linear model, which takes more of them; none for `texts`.
        out_of_distribution: ``[N]`` bool: whether a number is far outside the range of the
            training data.
        flags: What is odd about a field, as a sentence that names it, and in which rows: ``[N]``
            bool.
        unknown: Which dense features of numbers and labels stand for a value that is missing or
            unseen without explanation, ``[N, D]`` bool; None if there is none.
    """

    dense: Tensor
    texts: Mapping[str, Tokens]
    out_of_distribution: Tensor
    linear_texts: Mapping[str, Tokens] | None = None
    flags: Mapping[str, Tensor] = field(default_factory=dict)
    unknown: Tensor | None = None

    def __len__(self) -> int:
        return len(self.dense)

    def take(self, rows_M: Tensor) -> Features:
        """Select rows, in the given order; *rows_M* is ``[M]`` int64."""
        linear = self.linear_texts
        return Features(
            dense=self.dense.index_select(0, rows_M),
            texts={name: tokens.take(rows_M) for name, tokens in self.texts.items()},
            out_of_distribution=self.out_of_distribution.index_select(0, rows_M),
            linear_texts=linear and {name: tokens.take(rows_M) for name, tokens in linear.items()},
            flags={text: odd_N.index_select(0, rows_M) for text, odd_N in self.flags.items()},
            unknown=None if self.unknown is None else self.unknown.index_select(0, rows_M),
        )

    def without_linear(self) -> Features:
        """The same without what the linear model alone takes."""
        return replace(self, linear_texts=None, flags={}, unknown=None)

    def remarks(self) -> list[list[str]]:
        """The sentences of `flags`, by row."""
        remarks: list[list[str]] = [[] for _ in range(len(self))]
        for text, odd_N in self.flags.items():
            for row in odd_N.nonzero()[:, 0].tolist():
                remarks[row].append(text)
        return remarks

    def inputs(self) -> dict[str, Tensor]:
        """Flat tensors: ``dense``, and those of each text field; see `Tokens.inputs`.

        The names of what the linear model takes begin with ``linear.``.
        """
        tensors = {"dense": self.dense}
        for name, tokens in self.texts.items():
            tensors |= tokens.inputs(name)
        for name, tokens in (self.linear_texts or {}).items():
            tensors |= tokens.inputs(f"{LINEAR_PREFIX}{name}")
        return tensors

    def split_inputs(self, size: int) -> Iterator[dict[str, Tensor]]:
        """Yield `inputs` of each *size* rows in turn, without those of the linear model alone.

        The last may be fewer. A tensor may be a view; its memory is aligned like that of a tensor
        of its own, so that products of matrices have the same bits.
        """
        texts = [tokens.split_inputs(name, size) for name, tokens in self.texts.items()]
        for dense in split_rows(self.dense, size):
            tensors = {"dense": dense}
            for chunks in texts:
                tensors |= next(chunks)
            yield tensors


def split_rows(tensor: Tensor, size: int) -> Sequence[Tensor]:
    """Each *size* rows of *tensor*, contiguous, in memory that is aligned like a tensor's own."""
    chunks = tensor.split(size)
    aligned = size * tensor.stride(0) * tensor.element_size() % _ALIGNMENT_BYTES == 0
    return chunks if aligned else [chunk.clone() for chunk in chunks]
