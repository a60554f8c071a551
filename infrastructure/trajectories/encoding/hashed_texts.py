"""Texts as models saved by versions without vocabularies read them: 512 tokens, case kept."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import cast

from torch import Tensor

from infrastructure.trajectories.encoding.features import Tokens
from infrastructure.trajectories.schema import is_missing

MAX_TOKENS = 512

_TOKEN = re.compile(r"\w+|[^\w\s]")


def hashed_tokens(values: Sequence[object], buckets: int, numbers_B: Tensor | None) -> Tokens:
    """Hash the texts of all rows; a missing one has no token.

    Args:
        values: Strings, lists of tokens, or None.
        buckets: Buckets of the field.
        numbers_B: Number of each bucket, or -1 to drop it; None to keep all.
    """
    texts = cast("list[str | Sequence[str]]", ["" if is_missing(v) else v for v in values])
    tokens = Tokens.of([buckets_of(text, buckets) for text in texts])
    return tokens if numbers_B is None else tokens.renumber(numbers_B)


def buckets_of(text: str | Sequence[str], buckets: int) -> list[int]:
    """Hash *text* into numbers below *buckets*, alike in every process and Python version.

    A string is split into words and punctuation marks; these and each adjacent pair are hashed.
    A list holds tokens that its author chose; each is hashed unchanged. Tokens after the first
    512 are dropped.
    """
    if not isinstance(text, str):
        return [_bucket(token, buckets) for token in text[:MAX_TOKENS]]
    tokens = _TOKEN.findall(text)[:MAX_TOKENS]
    pairs = [f"{first} {second}" for first, second in pairwise(tokens)]
    return [_bucket(token, buckets) for token in tokens + pairs]


@lru_cache(maxsize=1 << 16)
def _bucket(token: str, buckets: int) -> int:
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) % buckets
