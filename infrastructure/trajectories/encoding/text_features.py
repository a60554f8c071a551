"""Splits a text into hashed features: words, pairs of words, and runs of characters.

Texts that are canonically equivalent in Unicode, or differ in case alone, have the same features.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from infrastructure.trajectories.schema import normalise

MAX_CHARACTERS = 1 << 20
"""Characters of a text that are read; the rest is cut."""

CHARACTERS = np.uint64(1 << 32)
"""Least feature of those that are characters in words: a hash of 32 bits, and this bit."""

Features = NDArray[np.uint64]

_ASCII_TOKEN = re.compile(r"\w+|[^\w\s]")
# Scripts that put no spaces between words: each run of characters is cut into short pieces.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u3005-\u3007\u3040-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
_UNSPACED_LENGTHS = (1, 2, 3)  # of pieces, in characters
_SPACED_LENGTHS = (3, 4, 5)  # of pieces of a word and the marks of its ends
_PAIR = np.uint32(0x9E3779B1)  # an odd factor, so that the order of a pair counts


def is_word(features: Features) -> NDArray[np.bool_]:
    """Whether each of *features* is a word or a run without spaces.

    The others are marks, pairs, and characters in words.
    """
    return np.asarray((features < CHARACTERS) & (features & np.uint64(1) == 0))


def text_features(
    texts: Sequence[str | Sequence[str]], *, characters: bool
) -> tuple[NDArray[np.int64], Features]:
    """Hash the features of *texts*, alike in every process and Python version.

    A string is split into words and punctuation marks; each of them and each adjacent pair is a
    feature, and so are runs of up to 3 characters of scripts without spaces. A list holds tokens
    that its author chose; each is hashed unchanged.

    Args:
        characters: Whether to cut the words of other scripts into runs of 3 to 5 characters. These
            features are at least `CHARACTERS`, the others are below it.

    Returns:
        Text of each feature, and the feature; repeated ones are repeated.
    """
    words, singles = list[str](), list[int]()
    lengths_of_words, lengths_of_singles = list[int](), list[int]()
    for text in texts:
        words_before, singles_before = len(words), len(singles)
        if isinstance(text, str):
            _split(normalise(text[:MAX_CHARACTERS]), words, singles)
        else:
            singles += [_hash(token) & ~1 for token in text]
        lengths_of_words.append(len(words) - words_before)
        lengths_of_singles.append(len(singles) - singles_before)
    text_of_word = np.repeat(np.arange(len(texts)), lengths_of_words)
    hashes = np.fromiter(map(_hash, words), dtype=np.uint32, count=len(words))
    is_pair = text_of_word[1:] == text_of_word[:-1]
    pairs = ((hashes[:-1] * _PAIR + hashes[1:]) | np.uint32(1))[is_pair]
    runs = list(map(_runs_of_word, words)) if characters else []
    return (
        np.concatenate(
            [
                text_of_word,
                text_of_word[1:][is_pair],
                np.repeat(np.arange(len(texts)), lengths_of_singles),
                np.repeat(text_of_word, list(map(len, runs))) if runs else text_of_word[:0],
            ]
        ),
        np.concatenate([hashes, pairs, np.array(singles, dtype=np.uint64), *runs]),
    )


def _split(text: str, words: list[str], runs: list[int]) -> None:
    """Append words and marks of *text*, and hashes of runs of scripts without spaces."""
    if text.isascii():
        words += _ASCII_TOKEN.findall(text)
        return
    for token, unspaced in _token().findall(text):
        if unspaced:
            runs += _cut(unspaced, _UNSPACED_LENGTHS)
        else:
            words.append(token)


@cache
def _token() -> re.Pattern[str]:
    """Pattern of a token: a word with its combining marks or a mark of punctuation; or a run."""
    marks = "".join(
        re.escape(chr(code))
        for code in (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0))
        if unicodedata.category(chr(code)).startswith("M")
    )
    return re.compile(rf"((?:(?![{_UNSPACED}])[\w{marks}])+|[^\w\s{_UNSPACED}])|([{_UNSPACED}]+)")


def _cut(text: str, lengths: Sequence[int]) -> list[int]:
    return [
        _hash(text[start : start + length])
        for length in lengths
        for start in range(len(text) - length + 1)
    ]


@lru_cache(maxsize=1 << 15)
def _runs_of_word(word: str) -> Features:
    """Runs of characters in *word* and the marks of its ends; none of a punctuation mark."""
    runs = _cut(f"<{word}>", _SPACED_LENGTHS) if word[0].isalnum() else []
    return np.array(runs, dtype=np.uint64) | CHARACTERS


@lru_cache(maxsize=1 << 16)
def _hash(token: str) -> int:
    """Hash of 32 bits: even for a word, odd for a mark of punctuation."""
    is_mark = not (token[:1].isalnum() or token.startswith("_"))
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) & ~1 | is_mark
