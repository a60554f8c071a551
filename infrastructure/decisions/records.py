"""Records of the decisions' log, one line of JSON each, with a checksum.

A line reads ``{"v":1,"crc":"89abcdef","record":{...}}``. The checksum (CRC-32, hexadecimal) covers
the bytes of the inner object, so that torn and altered lines are detected.

A record is a JSON object. All have ``kind``, ``id``, ``at`` (Unix seconds) and ``content`` (hash of
what the client sent). Further fields by kind:

- ``decision``: ``group``, ``observation``, ``actions``, ``chosen``, ``propensity``, ``deadline``,
  and ``answer``, all that was answered.
- ``choice``, which a client made by itself: the same without ``answer``; the propensity may be
  null.
- ``outcome``: ``id`` is the decision's; ``of``, segment and offset of the decision's or choice's
  record, and its ``deadline``; ``report``, the id of the report or null; ``state``, one of
  ``recorded``, ``partial`` and ``late``; and all fields that were reported so far:
  ``next_observation``, ``reward``, ``terminated``, ``error``. A partial outcome counts once the
  deadline has passed; after that, a decision that has one takes no further report.
- ``transition``: ``transition``, the fields of a `Transition`.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple, TypeAlias

LogRecord: TypeAlias = dict[str, Any]

_HEAD = b'{"v":1,"crc":"'
_MIDDLE = b'","record":'
_PAYLOAD_AT = len(_HEAD) + 8 + len(_MIDDLE)


class DamagedLineError(ValueError):
    """A line of the log is torn, altered or of another version."""


class Place(NamedTuple):
    """Where a record of an agent's log begins: number of the segment, and offset in bytes."""

    segment: int
    offset: int


BEGINNING = Place(0, 0)


def encode_line(record: LogRecord) -> bytes:
    """Encode *record* as one line, newline included."""
    payload = json.dumps(record, separators=(",", ":")).encode("ascii")
    return b"%b%08x%b%b}\n" % (_HEAD, zlib.crc32(payload), _MIDDLE, payload)


def decode_line(line: bytes) -> LogRecord:
    """Decode a line; the newline may be missing.

    Raises:
        DamagedLineError: It is torn, altered or of another version.
    """
    if line.isspace():
        raise DamagedLineError("the record was removed")
    line = line.rstrip(b"\n")
    payload = line[_PAYLOAD_AT:-1]
    expected = b"%b%08x%b" % (_HEAD, zlib.crc32(payload), _MIDDLE)
    if line[:_PAYLOAD_AT] != expected or not line.endswith(b"}}"):
        raise DamagedLineError("the line is torn, altered, or not of version 1")
    record = json.loads(payload)  # the checksum shows that it is what `encode_line` wrote
    return dict(record)
