"""Blanks records of a group in segments, where they lie: offsets of all other records stay.

A removed record becomes a line of spaces of the same length, which readers pass over. Processes
may append meanwhile. A Parquet file is rewritten and replaced as a whole.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from infrastructure.trajectories.parquet_segments import (
    find_compacted,
    restored_lines,
    write_parquet,
)
from infrastructure.trajectories.record import RecordError, decode_record
from infrastructure.trajectories.segments import SEGMENT_SUFFIX

Spans = list[tuple[int, int]]
"""Offset and length, newline included, of lines in a file."""


def find_group(folder: Path, group: str) -> dict[str, Spans]:
    """Return where the transitions of *group* lie, by name of their segment of JSON lines.

    Raises:
        OSError: A segment cannot be read.
    """
    found = dict[str, Spans]()
    for path in sorted(folder.glob(f"*{SEGMENT_SUFFIX}")):
        try:
            with path.open("rb") as file:
                spans = _spans(file, group)
        except FileNotFoundError:  # compacted meanwhile: found in Parquet
            continue
        if spans:
            found[path.name] = spans
    return found


def blank(path: Path, spans: Sequence[tuple[int, int]]) -> None:
    """Overwrite the lines *spans* of *path* by spaces, durably; doing it twice does no harm.

    Raises:
        OSError: The file cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # `compact` waits, writers do not
        for offset, length in spans:
            os.pwrite(descriptor, b" " * (length - 1) + b"\n", offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_compacted_group(folder: Path, group: str) -> dict[str, Spans]:
    """Return where the transitions of *group* lie in segments in Parquet, by name of the segment.

    Raises:
        OSError: A file cannot be read.
        MisconfiguredError: pyarrow is not installed.
    """
    found = dict[str, Spans]()
    for name, compacted in find_compacted(folder, _refuse).items():
        if spans := _spans(restored_lines(*compacted), group):
            found[name] = spans
    return found


def blank_compacted(
    folder: Path, removed: Mapping[str, Spans], poll: Callable[[], object] = lambda: None
) -> None:
    """Rewrite the Parquet files with the segments *removed*, with their lines to remove blank.

    Args:
        removed: Segment to its lines to remove.
        poll: Called often; an exception that it raises ends the work and changes nothing.

    Raises:
        OSError: The disk refuses.
        ParquetError: A segment cannot be restored.
    """
    if not removed:
        return
    compacted = find_compacted(folder, _refuse)
    for path in {compacted[name][0] for name in removed if name in compacted}:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".removal.") as temporary:
            parts = []
            for name, (of, segment) in compacted.items():
                if of != path:
                    continue
                parts.append(Path(temporary, name))
                with parts[-1].open("wb") as file:
                    file.writelines(restored_lines(path, segment))
                if name in removed:
                    blank(parts[-1], removed[name])
            write_parquet(path, parts, poll)


def _spans(lines: Iterable[bytes], group: str) -> Spans:
    spans, offset = Spans(), 0
    for line in lines:
        if _is_of(line, group):
            spans.append((offset, len(line)))
        offset += len(line)
    return spans


def _is_of(line: bytes, group: str) -> bool:
    try:
        return line.endswith(b"\n") and decode_record(line[:-1]).group == group
    except RecordError:
        return False


def _refuse(path: Path, _position: int, reason: str) -> None:
    raise OSError(f"{path} {reason}")
