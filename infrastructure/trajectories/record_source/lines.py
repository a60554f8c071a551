"""Text of a file of records: lines, how they are compressed, what one may hold; documents."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from codecs import BOM_UTF8
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from infrastructure.trajectories.record_source.formats import Decode, DecodedRecord

MAX_LINE_BYTES = 1 << 20
LINE_TOO_LONG = f"the line is longer than {MAX_LINE_BYTES >> 20} MiB"
MAX_DOCUMENT_BYTES = 1 << 28
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


def begins_document(head: bytes) -> bool:
    """Whether a file that begins with *head* is one JSON document, or several of many lines."""
    first = head.removeprefix(BOM_UTF8).lstrip().partition(b"\n")[0].rstrip()
    return first == b"{" or first.startswith(b"[")


def document_records(content: bytes) -> list[bytes]:
    """Return the JSON objects of a file of documents, each on one line.

    A list stands for its items, and an object with a single list of objects for these.

    Raises:
        ValueError: *content* is not whole JSON, or holds something else than objects.
    """
    text = content.decode("utf-8-sig")
    decoder, found, start = json.JSONDecoder(), list[object](), 0
    try:
        while start < len(text):
            if text[start].isspace():
                start += 1
                continue
            value, start = decoder.raw_decode(text, start)
            found += value if isinstance(value, list) else [value]
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    records = [record for value in found for record in _inner_list(value)]
    if not all(isinstance(record, dict) for record in records):
        raise ValueError("it holds something else than objects")
    return [json.dumps(record).encode() for record in records]


def _inner_list(value: object) -> list[object]:
    if isinstance(value, dict):
        lists = [
            each
            for each in value.values()
            if isinstance(each, list) and each and all(isinstance(item, dict) for item in each)
        ]
        if len(lists) == 1 and not any(isinstance(each, str) for each in value.values()):
            return lists[0]
    return [value]


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
