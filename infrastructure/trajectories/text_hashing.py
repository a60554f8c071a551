"""Text as bucket numbers, by a hash that is the same in every process and version of Python."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

MAX_TOKENS = 512

_TOKEN = re.compile(r"\w+|[^\w\s]")


def buckets_of(text: str | Sequence[str], buckets: int) -> list[int]:
    """Hash *text* into numbers below *buckets*.

    A string gives its words, signs and their pairs; a list gives its items as they are, since
    its author chose the tokens. What follows the first 512 tokens is left out.
    """
    if not isinstance(text, str):
        return [_bucket(token, buckets) for token in text[:MAX_TOKENS]]
    tokens = _TOKEN.findall(text)[:MAX_TOKENS]
    pairs = [f"{first} {second}" for first, second in pairwise(tokens)]
    return [_bucket(token, buckets) for token in tokens + pairs]


@lru_cache(maxsize=1 << 16)
def _bucket(token: str, buckets: int) -> int:
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) % buckets
