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

MAX_CHARACTERS = 1 << 20
"""Characters of a text that are read; the rest is cut."""

Hashes = NDArray[np.uint32]

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


def normalise(text: str) -> str:
    """Fold case and compose characters (NFC)."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFD", text).casefold()
    return unicodedata.normalize("NFC", folded)


def is_word(hashes: Hashes) -> NDArray[np.bool_]:
    """Whether each of *hashes* is of a word or a piece, not of a mark or a pair."""
    return np.asarray(hashes & np.uint32(1) == 0)


def text_features(text: str | Sequence[str], *, characters: bool) -> tuple[Hashes, Hashes]:
    """Hash the features of *text*, alike in every process and Python version.

    A string is split into words and punctuation marks; each of them and each adjacent pair is a
    feature, and so are runs of up to 3 characters of scripts without spaces. A list holds tokens
    that its author chose; each is hashed unchanged.

    Args:
        characters: Whether to cut the words of other scripts into runs of 3 to 5 characters.

    Returns:
        Features of words, and those of the characters in words; repeated ones are repeated.
    """
    if not isinstance(text, str):
        words = np.array([_hash(token) for token in text], dtype=np.uint32)
        return words & ~np.uint32(1), _NONE
    text = normalise(text[:MAX_CHARACTERS])
    pieces = list[int]()
    if text.isascii():
        tokens = _ASCII_TOKEN.findall(text)
    else:
        tokens = list[str]()
        for token, unspaced in _token().findall(text):
            if unspaced:
                pieces += _cut(unspaced, _UNSPACED_LENGTHS)
            else:
                tokens.append(token)
    words = np.array([_hash(token) for token in tokens], dtype=np.uint32)
    pairs = (words[:-1] * _PAIR + words[1:]) | np.uint32(1)
    parts = [_pieces_of_word(token) for token in tokens] if characters else []
    return (
        np.concatenate([words, pairs, np.array(pieces, dtype=np.uint32)]),
        np.concatenate([_NONE, *parts]),
    )


_NONE = np.empty(0, dtype=np.uint32)


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
def _pieces_of_word(word: str) -> Hashes:
    if not word[0].isalnum():  # a mark
        return _NONE
    return np.array(_cut(f"<{word}>", _SPACED_LENGTHS), dtype=np.uint32)


@lru_cache(maxsize=1 << 16)
def _hash(token: str) -> int:
    """Hash of 32 bits: even for a word, odd for a mark of punctuation."""
    is_mark = not (token[:1].isalnum() or token.startswith("_"))
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) & ~1 | is_mark
