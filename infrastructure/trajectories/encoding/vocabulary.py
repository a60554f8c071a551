"""The features of a text field that the training data holds, weighted by TF-IDF.

Words and characters in words are weighed apart: a text has up to two bags of features.

Shapes: D texts, G bags of them, T features of all of them, V features of the vocabulary.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from infrastructure.trajectories.encoding.features import Tokens
from infrastructure.trajectories.encoding.text_features import CHARACTERS, Features, text_features

_TOGETHER = 1 << 20  # characters or tokens whose features are counted at once
_FEATURE_BITS = np.uint64(33)
_FEATURE = np.uint64((1 << 33) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bags:
    """Distinct features of D texts, concatenated, and how often each occurs in its text.

    Attributes:
        features: ``[T]`` uint64, ascending within a bag.
        counts: ``[T]`` float64.
        lengths: ``[G]`` int64, features per bag.
        per_text: Bags of a text: 1 for its words; 2 if one for their characters follows.
    """

    features: Features
    counts: NDArray[np.float64]
    lengths: NDArray[np.int64]
    per_text: int

    @classmethod
    def of(cls, texts: Sequence[str | Sequence[str]], *, characters: bool) -> Bags:
        """Count the features of *texts*; see `text_features`."""
        parts, start, size = list[Bags](), 0, 0
        for end, text in enumerate(texts, 1):
            size += len(text)
            if size > _TOGETHER or end == len(texts):
                parts.append(cls._count(texts[start:end], characters))
                start, size = end, 0
        if len(parts) != 1:
            parts.append(cls._count([], characters))
            return cls(
                features=np.concatenate([part.features for part in parts]),
                counts=np.concatenate([part.counts for part in parts]),
                lengths=np.concatenate([part.lengths for part in parts]),
                per_text=parts[0].per_text,
            )
        return parts[0]

    @classmethod
    def _count(cls, texts: Sequence[str | Sequence[str]], characters: bool) -> Bags:
        per_text = 2 if characters else 1
        texts_T, features_T = text_features(texts, characters=characters)
        bags_T = texts_T * per_text + (features_T >= CHARACTERS)
        keys_T = bags_T.astype(np.uint64) << _FEATURE_BITS | features_T
        keys_T.sort()
        is_first_T = np.ones(len(keys_T) + 1, dtype=np.bool_)  # and the end
        np.not_equal(keys_T[1:], keys_T[:-1], out=is_first_T[1:-1])
        starts_T = np.flatnonzero(is_first_T)
        keys_T = keys_T[starts_T[:-1]]
        bags_T = (keys_T >> _FEATURE_BITS).astype(np.int64)
        return cls(
            features=keys_T & _FEATURE,
            counts=(starts_T[1:] - starts_T[:-1]).astype(np.float64),
            lengths=np.bincount(bags_T, minlength=len(texts) * per_text),
            per_text=per_text,
        )


class Vocabulary:
    """Features that occurred in the training data: words first, the most frequent first.

    Args:
        features: ``[V]`` uint64.
        idf: ``[V]`` float32, inverse document frequencies.
        mean: ``[V]`` float32, mean weights of the training texts. They stand for a text without
            known features.

    Attributes:
        words: Number of features that are not characters in words.

    Raises:
        ValueError: The sizes differ, a feature is repeated or at the wrong place, or a number is
            not finite.
    """

    def __init__(
        self, features: Features, idf: NDArray[np.float32], mean: NDArray[np.float32]
    ) -> None:
        self.features, self.idf, self.mean = features, idf, mean
        self.words = int(np.count_nonzero(features < CHARACTERS))
        self._order = np.argsort(features)
        self._sorted = features[self._order]
        # Few features share their highest bits: where those begin, a search needs a few steps.
        self._shift = np.uint64(int(_FEATURE_BITS) - 3 - len(features).bit_length())
        high = np.arange((_FEATURE >> self._shift) + np.uint64(2), dtype=np.uint64)
        self._starts = np.searchsorted(self._sorted, high << self._shift).astype(np.int32)
        self._steps = int(np.diff(self._starts).max())
        self._ended = np.append(self._sorted, _FEATURE + np.uint64(1))
        if not len(features) == len(idf) == len(mean):
            raise ValueError("its hashes, frequencies and means differ in number")
        if (features[: self.words] >= CHARACTERS).any():
            raise ValueError("characters are before words")
        if (self._sorted[1:] == self._sorted[:-1]).any() or not np.isfinite([idf, mean]).all():
            raise ValueError("a hash is repeated, or a number is not finite")

    def __len__(self) -> int:
        return len(self.features)

    @property
    def has_characters(self) -> bool:
        """Whether there are characters in words."""
        return self.words < len(self)

    @classmethod
    def fit(cls, bags: Bags, rows: NDArray[np.int64], most: int) -> Vocabulary:
        """Keep the *most* frequent words, and so many characters, that are in two rows or more.

        Args:
            bags: Features of each distinct text.
            rows: Number of rows that have each text.
        """
        rows_G = np.repeat(rows, bags.per_text)
        features_V, place_T = np.unique(bags.features, return_inverse=True)
        rows_T = np.repeat(rows_G, bags.lengths)
        frequency_V = np.bincount(place_T, rows_T, len(features_V)).astype(np.int64)
        words = int(np.searchsorted(features_V, CHARACTERS))
        order = np.concatenate(
            [
                _most_frequent(frequency_V[:words], most),
                _most_frequent(frequency_V[words:], most) + words,
            ]
        )
        count = rows.sum()
        idf = np.log((1.0 + count) / (1.0 + frequency_V[order])) + 1.0
        zeros = np.zeros(len(order), dtype=np.float32)
        vocabulary = cls(features_V[order], idf.astype(np.float32), zeros)
        tokens = vocabulary.weigh(bags)
        rows_T = np.repeat(rows_G, tokens.lengths.numpy())
        total_V = np.bincount(
            tokens.buckets.numpy(), weights=tokens.weights.numpy() * rows_T, minlength=len(order)
        )
        # In half precision, as it is saved.
        vocabulary.mean = (total_V / max(count, 1)).astype(np.float16).astype(np.float32)
        return vocabulary

    def weigh(self, bags: Bags) -> Tokens:
        """Number the known features, and weigh them by TF-IDF; each bag has the norm 1."""
        place_T = self._starts[bags.features >> self._shift]
        for _ in range(self._steps):
            place_T += self._ended[place_T] < bags.features
        known_T = self._ended[place_T] == bags.features
        bags_T = np.repeat(np.arange(len(bags.lengths)), bags.lengths)[known_T]
        numbers_T = self._order[place_T[known_T]]
        weights_T = (1.0 + np.log(bags.counts[known_T])) * self.idf[numbers_T]
        squares_G = np.bincount(bags_T, weights=weights_T * weights_T, minlength=len(bags.lengths))
        weights_T /= np.sqrt(squares_G)[bags_T]
        return Tokens(
            buckets=torch.from_numpy(numbers_T),
            lengths=torch.from_numpy(np.bincount(bags_T, minlength=len(bags.lengths))),
            weights=torch.from_numpy(weights_T.astype(np.float32)),
        )

    def neutral(self, per_text: int) -> Tokens:
        """The bags of the mean text."""
        lengths = [self.words, len(self) - self.words][:per_text]
        return Tokens(
            buckets=torch.arange(len(self)),
            lengths=torch.tensor(lengths),
            weights=torch.from_numpy(self.mean),
        )

    def to_json(self) -> dict[str, object]:
        """Return the arrays, little-endian in base64; the means in half precision."""
        return {
            "words": self.words,
            "hashes": _packed(self.features.astype("<u4")),
            "idf": _packed(self.idf.astype("<f4")),
            "mean": _packed(self.mean.astype("<f2")),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Vocabulary:
        """Rebuild the vocabulary that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: *value* does not describe a vocabulary.
        """
        words = value["words"]
        if not isinstance(words, int) or words < 0:
            raise ValueError(f"the number of words must be at least 0, got {words!r:.40}")
        features = _unpacked(value["hashes"], "<u4").astype(np.uint64)
        features[words:] |= CHARACTERS
        return cls(
            features,
            _unpacked(value["idf"], "<f4").astype(np.float32),
            _unpacked(value["mean"], "<f2").astype(np.float32),
        )


def _most_frequent(frequency_V: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Positions of at most so many features, in two rows or more if there are such."""
    least = 2 if (frequency_V >= 2).any() else 1
    order = np.argsort(-frequency_V, kind="stable")[:most]
    return order[frequency_V[order] >= least]


def _packed(array: NDArray[np.generic]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _unpacked(text: object, dtype: str) -> NDArray[np.generic]:
    if not isinstance(text, str):
        raise TypeError(f"an array must be text in base64, got {text!r:.40}")
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
