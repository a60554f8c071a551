"""The features of a text field that the training data holds, weighted by TF-IDF.

Shapes: N texts, T features of all of them, V features of the vocabulary.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from infrastructure.trajectories.encoding.features import Tokens
from infrastructure.trajectories.encoding.text_features import Hashes

_TOGETHER = 1 << 22  # hashes that are sorted at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Bags:
    """Distinct features of N texts, concatenated, and how often each occurs in its text.

    Attributes:
        hashes: ``[T]`` uint32, ascending within a text.
        counts: ``[T]`` float32.
        lengths: ``[N]`` int64, features per text.
    """

    hashes: Hashes
    counts: NDArray[np.float32]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[Hashes]) -> Bags:
        """Count the features of *texts*."""
        parts, pending, size = list[Bags](), list[Hashes](), 0
        for hashes in texts:
            pending.append(hashes)
            size += len(hashes)
            if size > _TOGETHER:
                parts.append(cls._count(pending))
                pending, size = [], 0
        parts.append(cls._count(pending))
        if len(parts) == 1:
            return parts[0]
        return cls(
            hashes=np.concatenate([part.hashes for part in parts]),
            counts=np.concatenate([part.counts for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
        )

    @classmethod
    def _count(cls, texts: Sequence[Hashes]) -> Bags:
        rows_T = np.repeat(np.arange(len(texts), dtype=np.uint64), [len(text) for text in texts])
        hashes_T = np.concatenate([np.empty(0, dtype=np.uint32), *texts])
        keys, counts = np.unique(rows_T << np.uint64(32) | hashes_T, return_counts=True)
        rows = (keys >> np.uint64(32)).astype(np.int64)
        return cls(
            hashes=(keys & np.uint64(0xFFFFFFFF)).astype(np.uint32),
            counts=counts.astype(np.float32),
            lengths=np.bincount(rows, minlength=len(texts)),
        )


class Vocabulary:
    """Features that occurred in the training data, the most frequent first.

    Args:
        hashes: ``[V]`` uint32.
        idf: ``[V]`` float32, inverse document frequencies.
        mean: ``[V]`` float32, mean weights of the training texts. They stand for a text without
            known features.

    Raises:
        ValueError: The sizes differ, a hash is repeated, or a number is not finite.
    """

    def __init__(self, hashes: Hashes, idf: NDArray[np.float32], mean: NDArray[np.float32]) -> None:
        self.hashes, self.idf, self.mean = hashes, idf, mean
        self._order = np.argsort(hashes)
        self._sorted = hashes[self._order]
        if not len(hashes) == len(idf) == len(mean):
            raise ValueError("its hashes, frequencies and means differ in number")
        if (self._sorted[1:] == self._sorted[:-1]).any() or not np.isfinite([idf, mean]).all():
            raise ValueError("a hash is repeated, or a number is not finite")

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def fit(cls, bags: Bags, rows: NDArray[np.int64], most: int) -> Vocabulary:
        """Keep at most so many features: the *most* frequent that are in two rows or more.

        Args:
            bags: Features of each distinct text.
            rows: Number of rows that have each text.
        """
        hashes_V, place_T = np.unique(bags.hashes, return_inverse=True)
        rows_T = np.repeat(rows, bags.lengths)
        frequency_V = np.bincount(place_T, weights=rows_T, minlength=len(hashes_V))
        least = 2 if (frequency_V >= 2).any() else 1
        order = np.argsort(-frequency_V, kind="stable")[:most]
        order = order[frequency_V[order] >= least]
        count = rows.sum()
        idf = np.log((1.0 + count) / (1.0 + frequency_V[order])) + 1.0
        zeros = np.zeros(len(order), dtype=np.float32)
        vocabulary = cls(hashes_V[order], idf.astype(np.float32), zeros)
        tokens = vocabulary.weigh(bags)
        rows_T = np.repeat(rows, tokens.lengths.numpy())
        total_V = np.bincount(
            tokens.buckets.numpy(), weights=tokens.weights.numpy() * rows_T, minlength=len(order)
        )
        # In half precision, as it is saved.
        vocabulary.mean = (total_V / max(count, 1)).astype(np.float16).astype(np.float32)
        return vocabulary

    def _numbers(self, hashes_T: Hashes) -> NDArray[np.int64]:
        """Number of each of *hashes_T*; -1 if it is not in the vocabulary."""
        if not len(self):
            return np.full(len(hashes_T), -1, dtype=np.int64)
        place_T = np.minimum(np.searchsorted(self._sorted, hashes_T), len(self) - 1)
        return np.where(self._sorted[place_T] == hashes_T, self._order[place_T], -1)

    def weigh(self, bags: Bags) -> Tokens:
        """Number the known features, and weigh them by TF-IDF; each text has the norm 1."""
        numbers_T = self._numbers(bags.hashes)
        known_T = numbers_T >= 0
        rows_T = np.repeat(np.arange(len(bags.lengths)), bags.lengths)[known_T]
        numbers_T = numbers_T[known_T]
        weights_T = (1.0 + np.log(bags.counts[known_T])) * self.idf[numbers_T]
        squares_N = np.bincount(rows_T, weights=weights_T**2, minlength=len(bags.lengths))
        weights_T /= np.sqrt(squares_N)[rows_T]
        return Tokens(
            buckets=torch.from_numpy(numbers_T),
            lengths=torch.from_numpy(np.bincount(rows_T, minlength=len(bags.lengths))),
            weights=torch.from_numpy(weights_T.astype(np.float32)),
        )

    def neutral(self) -> Tokens:
        """The mean text as one row."""
        return Tokens(
            buckets=torch.arange(len(self)),
            lengths=torch.tensor([len(self)]),
            weights=torch.from_numpy(self.mean),
        )

    def to_json(self) -> dict[str, str]:
        """Return the arrays, little-endian in base64; the means in half precision."""
        return {
            "hashes": _packed(self.hashes.astype("<u4")),
            "idf": _packed(self.idf.astype("<f4")),
            "mean": _packed(self.mean.astype("<f2")),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> Vocabulary:
        """Rebuild the vocabulary that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: *value* does not describe a vocabulary.
        """
        return cls(
            _unpacked(value["hashes"], "<u4").astype(np.uint32),
            _unpacked(value["idf"], "<f4").astype(np.float32),
            _unpacked(value["mean"], "<f2").astype(np.float32),
        )


def _packed(array: NDArray[np.generic]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _unpacked(text: str, dtype: str) -> NDArray[np.generic]:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
