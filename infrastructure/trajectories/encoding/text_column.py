"""The texts of one field: hashed, and weighted by the field's vocabulary.

Shapes: N rows, D distinct texts, G bags of features of these; see `Bags`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infrastructure.trajectories.encoding.features import Tokens
from infrastructure.trajectories.encoding.text_features import MAX_CHARACTERS, is_word
from infrastructure.trajectories.encoding.vocabulary import Bags, Vocabulary
from infrastructure.trajectories.schema import is_missing

MOST_CUT_UP = 1 << 22
"""Characters of all distinct texts of a field up to which their words are cut into pieces, too:
little data gains most from pieces, and much of it would take long."""

MOST_REMEMBERED = 1 << 18
"""Characters, or tokens of lists, of the texts of a field that are remembered between calls."""

Flags = NDArray[np.bool_]
Key: TypeAlias = str | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRows:
    """The texts of N rows, each distinct one hashed once.

    Attributes:
        place_N: Position of each row's text among the distinct ones, int64.
        bags: Features of the distinct texts.
        is_missing_D, is_blank_D, is_cut_D: Whether a text is missing; missing, or without a word
            or mark; longer than `MAX_CHARACTERS`.
    """

    place_N: Tensor
    bags: Bags
    is_missing_D: Flags
    is_blank_D: Flags
    is_cut_D: Flags

    @classmethod
    def of(cls, values: Sequence[object], *, characters: bool | None = None) -> TextRows:
        """Hash *values*: strings, lists of tokens, or missing.

        Args:
            characters: Whether to cut words into pieces; None to decide by `MOST_CUT_UP`.
        """
        places = dict[Key, int]()
        place_N = torch.tensor(
            [places.setdefault(_key(value), len(places)) for value in values],
            dtype=torch.int64,
        )
        texts = [text or "" for text in places]
        if characters is None:
            characters = sum(len(text) for text in texts if isinstance(text, str)) <= MOST_CUT_UP
        bags = Bags.of(texts, characters=characters)
        return cls(
            place_N=place_N,
            bags=bags,
            is_missing_D=np.array([text is None for text in places], dtype=np.bool_),
            is_blank_D=bags.lengths[:: bags.per_text] == 0,
            is_cut_D=np.array(
                [len(text) > MAX_CHARACTERS and isinstance(text, str) for text in texts],
                dtype=np.bool_,
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedTexts:
    """Weighed texts of N rows.

    Attributes:
        tokens: Words and characters.
        words: Words alone.
        flags_N4: Whether a row's text is missing; missing or blank; cut; or not blank, but without
            a known word: ``[N, 4]``.
    """

    tokens: Tokens
    words: Tokens
    flags_N4: Flags

    @classmethod
    def join(cls, parts: Sequence[EncodedTexts]) -> EncodedTexts:
        """Concatenate rows."""
        return cls(
            tokens=Tokens.join([part.tokens for part in parts]),
            words=Tokens.join([part.words for part in parts]),
            flags_N4=np.concatenate([part.flags_N4 for part in parts]),
        )

    def split(self) -> Iterator[EncodedTexts]:
        """Yield each row."""
        pairs = zip(self.tokens.split(), self.words.split(), strict=True)
        for row, (tokens, words) in enumerate(pairs):
            yield EncodedTexts(tokens=tokens, words=words, flags_N4=self.flags_N4[row : row + 1])


class TextColumn:
    """Vocabulary of a text field, and the texts that it gives."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._is_word_V = is_word(vocabulary.features)

    @classmethod
    def fit(cls, rows: TextRows, most: int) -> TextColumn:
        """Fit a vocabulary of at most so many words, and as many characters, to training texts."""
        counts_D = np.bincount(rows.place_N.numpy(), minlength=len(rows.is_missing_D))
        return cls(Vocabulary.fit(rows.bags, counts_D, most))

    def rows_of(self, values: Sequence[object]) -> TextRows:
        """Hash *values* as far as the vocabulary goes."""
        return TextRows.of(values, characters=self.vocabulary.has_characters)

    def encode(self, rows: TextRows, *, blank_is_known: bool) -> EncodedTexts:
        """Weigh the texts; an unknown one becomes the mean text.

        Args:
            blank_is_known: Whether a blank text has no tokens, instead of those of the mean text.
        """
        tokens, bags, per_text = self.vocabulary.weigh(rows.bags), rows.bags, rows.bags.per_text
        unknown_D = self._is_unknown(bags, tokens)
        neutral_G = tokens.lengths.numpy() == 0
        neutral_G[::per_text] |= unknown_D
        if blank_is_known:
            neutral_G &= ~np.repeat(rows.is_blank_D, per_text)
        place_G = np.arange(len(neutral_G))
        is_neutral = bool(neutral_G.any())
        if is_neutral:
            place_G[neutral_G] = len(place_G) + place_G[neutral_G] % per_text
            tokens = Tokens.join([tokens, self.vocabulary.neutral(per_text)])
        if is_neutral or len(rows.place_N) > len(unknown_D):  # or some texts are in several rows
            bags_DB = torch.from_numpy(place_G).view(-1, per_text)
            tokens = tokens.take(bags_DB[rows.place_N].view(-1))
        words = tokens
        if per_text == 2:
            is_word_T, lengths_N2 = (
                tokens.buckets < self.vocabulary.words,
                tokens.lengths.view(-1, 2),
            )
            words = Tokens(
                buckets=tokens.buckets[is_word_T],
                lengths=lengths_N2[:, 0].contiguous(),
                weights=tokens.weights[is_word_T],
            )
            tokens = replace(tokens, lengths=lengths_N2.sum(1))
        flags_D4 = np.stack([rows.is_missing_D, rows.is_blank_D, rows.is_cut_D, unknown_D], axis=1)
        return EncodedTexts(tokens=tokens, words=words, flags_N4=flags_D4[rows.place_N.numpy()])

    def _is_unknown(self, bags: Bags, known: Tokens) -> Flags:
        """Whether a text is not blank, but has no known word, ``[D]``.

        Marks alone do not make a text known, unless it has no words.

        Args:
            known: Known features of *bags*.
        """
        count = len(bags.lengths) // bags.per_text
        texts_T = np.repeat(np.arange(len(bags.lengths)) // bags.per_text, known.lengths.numpy())
        known_T = texts_T[self._is_word_V[known.buckets.numpy()]]
        unknown_D = np.bincount(known_T, minlength=count) == 0
        if unknown_D.any():
            texts_T = np.repeat(np.arange(len(bags.lengths)) // bags.per_text, bags.lengths)
            has_words_D = np.bincount(texts_T[is_word(bags.features)], minlength=count) > 0
            is_marks_D = known.lengths.numpy()[:: bags.per_text] > 0
            unknown_D &= (bags.lengths[:: bags.per_text] > 0) & (has_words_D | ~is_marks_D)
        return np.asarray(unknown_D)

    def to_json(self) -> dict[str, object]:
        """Return the vocabulary as a JSON object."""
        return self.vocabulary.to_json()

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> TextColumn:
        """Rebuild the column that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: *value* does not describe a vocabulary.
        """
        return cls(Vocabulary.from_json(value))


class RecentTexts:
    """Encodes texts, and remembers the last ones: an agent ranks candidates in a state, and again.

    Args:
        blank_is_known: See `TextColumn.encode`.
    """

    def __init__(self, column: TextColumn, *, blank_is_known: bool) -> None:
        self._column, self._blank_is_known = column, blank_is_known
        self._rows, self._characters = dict[Key, EncodedTexts](), 0

    def encode(self, values: Sequence[object]) -> EncodedTexts:
        """Encode *values*, one per row; see `TextRows.of`."""
        keys, rows = [_key(value) for value in values], self._rows
        unknown = [key for key in dict.fromkeys(keys) if key not in rows]
        characters = sum(len(key) for key in unknown if key)
        if characters > MOST_REMEMBERED or not keys:
            return self._encode(values)
        if unknown:
            self._characters += characters
            if self._characters > MOST_REMEMBERED:  # other threads go on with what they read
                unknown = list(dict.fromkeys(keys))
                rows = self._rows = {}
                self._characters = sum(len(key) for key in unknown if key)
            rows.update(zip(unknown, self._encode(unknown).split(), strict=True))
        return EncodedTexts.join([rows[key] for key in keys])

    def _encode(self, values: Sequence[object]) -> EncodedTexts:
        column = self._column
        return column.encode(column.rows_of(values), blank_is_known=self._blank_is_known)


def _key(value: object) -> Key:
    if isinstance(value, str):
        return value
    return None if is_missing(value) else tuple(cast("Sequence[str]", value))
