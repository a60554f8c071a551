"""The texts of one field: hashed, and weighted by the field's vocabularies.

Shapes: N rows, D distinct texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from infrastructure.trajectories.encoding.features import Tokens
from infrastructure.trajectories.encoding.text_features import (
    MAX_CHARACTERS,
    is_word,
    text_features,
)
from infrastructure.trajectories.encoding.vocabulary import Bags, Vocabulary
from infrastructure.trajectories.schema import is_missing

MOST_CUT_UP = 1 << 22
"""Characters of all distinct texts of a field up to which their words are cut into pieces, too:
little data gains most from pieces, and much of it would take long."""

WORDS, CHARACTERS = "", ".characters"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRows:
    """The texts of N rows, each distinct one hashed once.

    Attributes:
        place_N: Position of each row's text among the distinct ones, int64.
        words, characters: Features of the distinct texts.
        is_missing_N, is_blank_N, is_cut_N: Whether a row's text is missing; missing, or without a
            word or mark; longer than `MAX_CHARACTERS`.
    """

    place_N: Tensor
    words: Bags
    characters: Bags
    is_missing_N: Tensor
    is_blank_N: Tensor
    is_cut_N: Tensor

    @classmethod
    def of(cls, values: Sequence[object], *, characters: bool | None = None) -> TextRows:
        """Hash *values*: strings, lists of tokens, or missing.

        Args:
            characters: Whether to cut words into pieces; None to decide by `MOST_CUT_UP`.
        """
        places = dict[str | tuple[str, ...], int]()
        texts = [
            "" if is_missing(value) else value if isinstance(value, str) else _tokens(value)
            for value in values
        ]
        place_N = torch.tensor(
            [places.setdefault(text, len(places)) for text in texts], dtype=torch.int64
        )
        strings = [text for text in places if isinstance(text, str)]
        if characters is None:
            characters = sum(map(len, strings)) <= MOST_CUT_UP
        hashed = [text_features(text, characters=characters) for text in places]
        words = Bags.of(each for each, _ in hashed)
        cut = [isinstance(text, str) and len(text) > MAX_CHARACTERS for text in places]
        return cls(
            place_N=place_N,
            words=words,
            characters=Bags.of(each for _, each in hashed),
            is_missing_N=torch.tensor(list(map(is_missing, values)), dtype=torch.bool),
            is_blank_N=torch.from_numpy(words.lengths == 0)[place_N],
            is_cut_N=torch.tensor(cut, dtype=torch.bool)[place_N],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TextColumn:
    """Vocabularies of a text field.

    Attributes:
        words: Words, pairs of words, and pieces of scripts without spaces.
        characters: Pieces of words; None if words are not cut.
    """

    words: Vocabulary
    characters: Vocabulary | None

    @classmethod
    def fit(cls, rows: TextRows, most: int) -> TextColumn:
        """Fit both vocabularies, of at most so many features each, to training texts."""
        counts_D = np.bincount(rows.place_N.numpy(), minlength=len(rows.words.lengths))
        characters = rows.characters
        return cls(
            words=Vocabulary.fit(rows.words, counts_D, most),
            characters=(
                Vocabulary.fit(characters, counts_D, most) if len(characters.hashes) else None
            ),
        )

    @property
    def rows(self) -> int:
        """Number of features."""
        return sum(len(vocabulary) for _, vocabulary in self.parts())

    def parts(self) -> Iterator[tuple[str, Vocabulary]]:
        """Yield the vocabularies, and what is appended to the field's key for each."""
        yield WORDS, self.words
        if self.characters is not None:
            yield CHARACTERS, self.characters

    def rows_of(self, values: Sequence[object]) -> TextRows:
        """Hash *values* as far as the vocabularies go."""
        return TextRows.of(values, characters=self.characters is not None)

    def encode(self, rows: TextRows, *, blank_is_known: bool) -> tuple[dict[str, Tokens], Tensor]:
        """Weigh the texts; an unknown one becomes the mean text.

        Args:
            blank_is_known: Whether a blank text has no tokens, instead of those of the mean text.

        Returns:
            Tokens by what is appended to the field's key; and whether a row's text is not blank,
            but has no known word, ``[N]`` bool.
        """
        weighed = {
            part: vocabulary.weigh(rows.words if part == WORDS else rows.characters)
            for part, vocabulary in self.parts()
        }
        unknown_D = self._is_unknown(rows.words, weighed[WORDS])
        encoded = {}
        for part, vocabulary in self.parts():
            tokens = weighed[part]
            neutral_D = tokens.lengths == 0
            if part == WORDS:
                neutral_D = neutral_D | unknown_D
            if blank_is_known:
                neutral_D = neutral_D & ~torch.from_numpy(rows.words.lengths == 0)
            place_D = torch.arange(len(neutral_D))
            if bool(neutral_D.any()):
                place_D[neutral_D] = len(neutral_D)
                tokens = Tokens.join([tokens, vocabulary.neutral()])
            elif len(rows.place_N) == len(place_D):  # all texts are distinct, in their order
                encoded[part] = tokens
                continue
            encoded[part] = tokens.take(place_D[rows.place_N])
        return encoded, unknown_D[rows.place_N]

    def _is_unknown(self, bags: Bags, known: Tokens) -> Tensor:
        """Whether a text is not blank, but has no known word, ``[D]`` bool.

        Marks alone do not make a text known, unless it has no words.

        Args:
            known: Known features of *bags*.
        """
        size = len(bags.lengths)
        rows_T = np.repeat(np.arange(size), known.lengths.numpy())
        is_known_word_T = is_word(self.words.hashes[known.buckets.numpy()])
        unknown_D = np.bincount(rows_T[is_known_word_T], minlength=size) == 0
        if unknown_D.any():
            all_rows_T = np.repeat(np.arange(size), bags.lengths)
            has_words_D = np.bincount(all_rows_T[is_word(bags.hashes)], minlength=size) > 0
            unknown_D &= (bags.lengths > 0) & (has_words_D | (known.lengths.numpy() == 0))
        return torch.from_numpy(unknown_D)

    def to_json(self) -> dict[str, object]:
        """Return both vocabularies as a JSON object."""
        return {
            part.lstrip(".") or "words": vocabulary.to_json() for part, vocabulary in self.parts()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, str]]) -> TextColumn:
        """Rebuild the column that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: *value* does not describe vocabularies.
        """
        characters = value.get("characters")
        return cls(
            words=Vocabulary.from_json(value["words"]),
            characters=None if characters is None else Vocabulary.from_json(characters),
        )


def _tokens(value: object) -> tuple[str, ...]:
    return tuple(cast("Sequence[str]", value))
