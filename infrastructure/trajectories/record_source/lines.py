"""Lines of a file of records: how they are compressed, how long they may be, what one may hold."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from infrastructure.trajectories.record_source.formats import Decode, DecodedRecord

MAX_LINE_BYTES = 1 << 20
LINE_TOO_LONG = f"the line is longer than {MAX_LINE_BYTES >> 20} MiB"
OTHER_LINE_ENDS = "lines end with a carriage return alone; end them with a newline"
DECOMPRESS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
OTHER_COMPRESSED = (".zst", ".zip", ".lz4", ".Z")
_MAX_STARTS = 100  # of records in a torn line


def split_objects(line: bytes) -> list[bytes]:
    """Split a line into its JSON objects; several are there if two writers shared a file.

    A line that is not a sequence of JSON objects is returned whole.
    """
    if b"}{" not in line and b"} {" not in line:
        return [line] if line else []
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return [line]
    decoder, objects, start = json.JSONDecoder(), [], 0
    while start < len(text):
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return [line]
        objects.append(text[start:end].encode())
        while end < len(text) and text[end].isspace():
            end += 1
        start = end
    return objects


def whole_end(line: bytes, decode: Decode) -> tuple[DecodedRecord, bytes] | None:
    """Find the whole record at the end of a torn line, as a killed writer leaves it.

    Returns:
        The record and its bytes; None if *line* is JSON, or does not end with a record.
    """
    if is_object(line):
        return None
    start = 0
    for _ in range(_MAX_STARTS):
        if (start := line.find(b'{"', start + 1)) < 0:
            return None
        with suppress(ValueError):
            return decode(line[start:]), line[start:]
    return None


def is_object(line: bytes) -> bool:
    """Whether *line* is one whole JSON object."""
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict)
    return False
