"""Segments of JSON lines: the lines and transitions of one file, by byte offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories.record import RecordError, decode_record

SEGMENT_SUFFIX = ".jsonl"
PARQUET_SUFFIX = ".parquet"
_TAIL_BYTES = 1 << 16
_COUNTED_BYTES = 1 << 20  # read at once
_RANGE_BYTES = 1 << 24  # decoded at once by those who read from the end on

OnSkip = Callable[[Path, int, str], None]
"""Receives each skipped record: file, position (byte offset or line number), reason."""


def next_number(folder: Path) -> int:
    """Return the number of a new segment, with which its name begins: one above all others."""
    suffixes = (SEGMENT_SUFFIX, PARQUET_SUFFIX)
    segments = [path for suffix in suffixes for path in folder.glob(f"*{suffix}")]
    numbers = [path.name.partition("-")[0] for path in segments]
    return 1 + max((int(text) for text in numbers if text.isdecimal()), default=0)


def read_segment(path: Path, start: int, end: int, on_skip: OnSkip) -> Iterator[Transition]:
    """Yield the transitions from the byte *start* up to *end*; report those that are skipped.

    Raises:
        FileNotFoundError: There is no such segment.
    """
    offset = start
    try:
        with path.open("rb") as file:
            file.seek(start)
            while offset < end and (line := file.readline()):
                transition = decode_line(line, path, offset, on_skip)
                offset += len(line)
                if transition is not None:
                    yield transition
    except FileNotFoundError:
        raise
    except OSError as error:
        on_skip(path, offset, f"cannot be read: {error.strerror}")
        return
    if offset < end:
        on_skip(path, offset, f"{end - offset} bytes are missing since the snapshot")


def decode_line(line: bytes, path: Path, offset: int, on_skip: OnSkip) -> Transition | None:
    """Decode a line with its newline; report one that is torn or altered, and return None.

    A line of spaces was removed, which is not reported.
    """
    if line[:1] == b" " and line.isspace():
        return None
    try:
        return decode_record(line.rstrip(b"\n"))
    except RecordError as error:
        on_skip(path, offset, str(error))
        return None


def ranges_from_end(path: Path, length: int) -> Iterator[tuple[int, int]]:
    """Cut the first *length* bytes into ranges of whole lines, the last range first.

    Raises:
        OSError: The file cannot be read.
    """
    end = length
    while end > _RANGE_BYTES:
        start = whole_length(path, end - _RANGE_BYTES)
        yield start, end
        end = start
    yield 0, end


def count_lines(path: Path, length: int) -> int:
    """Return the number of lines in the first *length* bytes.

    Raises:
        OSError: The file cannot be read.
    """
    count = 0
    with path.open("rb") as file:
        while length and (chunk := file.read(min(length, _COUNTED_BYTES))):
            count += chunk.count(b"\n")
            length -= len(chunk)
    return count


def whole_length(path: Path, size: int) -> int:
    """Return the length up to and including the last newline in the first *size* bytes.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        end = size
        while end > 0:
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0
