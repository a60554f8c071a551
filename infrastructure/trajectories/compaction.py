"""Moves closed segments of a replay buffer to Parquet, which takes a twentieth of the space."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from infrastructure.files import flush_folder
from infrastructure.trajectories.parquet_segments import find_compacted, write_parquet
from infrastructure.trajectories.segments import PARQUET_SUFFIX, SEGMENT_SUFFIX

SMALLEST_BYTES = 1 << 25
"""Fewer bytes of closed segments stay as they are, and pyarrow is not imported."""

LARGEST_BYTES = 1 << 28
"""Most bytes that one call compacts, and that a segment may have to be compacted."""

_OF_A_BUFFER = re.compile(rf"\d+-\d+-[0-9a-f]{{8}}{re.escape(SEGMENT_SUFFIX)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compaction:
    """What was done.

    Attributes:
        segments: Number of segments that are no longer files of JSON lines.
        bytes_before, bytes_after: Their size, and that of the Parquet file.
    """

    segments: int
    bytes_before: int
    bytes_after: int


def compact(
    folder: Path,
    poll: Callable[[], object] = lambda: None,
    *,
    smallest: int = SMALLEST_BYTES,
    largest: int = LARGEST_BYTES,
) -> Compaction | None:
    """Move the oldest closed segments of the replay buffer in *folder* to one Parquet file.

    The Parquet file appears complete, and is checked to restore each segment byte for byte, before
    the segments are removed. A process that is killed at any point loses nothing; the next call
    removes what it left. Segments that a `ReplayBuffer` has open, and those that other
    programs write whole, are left alone. Readers may be at work.

    Args:
        poll: Called often; an exception that it raises ends the work, and changes nothing.
        smallest, largest: See `SMALLEST_BYTES` and `LARGEST_BYTES`.

    Returns:
        None if there was too little to do, pyarrow is not installed, or another process is at it.

    Raises:
        OSError: The disk refuses, or a segment cannot be read.
        ParquetError: A segment cannot be restored from Parquet; it stays as it is.
    """
    if find_spec("pyarrow") is None or not folder.is_dir():
        return None
    with ExitStack() as stack:
        chosen, total = list[Path](), 0
        for path in sorted(folder.glob(f"*{SEGMENT_SUFFIX}")):
            if not _OF_A_BUFFER.fullmatch(path.name):
                continue
            size = path.stat().st_size
            if size > largest or not stack.enter_context(_closed(path)):
                continue
            if total + size > largest:
                break
            chosen.append(path)
            total += size
        if total < smallest:
            return None
        known = find_compacted(folder, lambda *_: None)
        _remove([path for path in chosen if path.name in known])
        chosen = [path for path in chosen if path.name not in known]
        if not chosen:
            return None
        target = chosen[-1].with_suffix(PARQUET_SUFFIX)
        before = sum(path.stat().st_size for path in chosen)
        write_parquet(target, chosen, poll)
        _remove(chosen)
        return Compaction(
            segments=len(chosen), bytes_before=before, bytes_after=target.stat().st_size
        )


def _remove(segments: list[Path]) -> None:
    for path in segments:
        path.unlink()
    if segments:
        flush_folder(segments[0].parent)


@contextmanager
def _closed(path: Path) -> Iterator[bool]:
    """Lock *path* in the block; False if its writer, or another compaction, has it open."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # removed by another compaction, or not ours to read
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_closed = path.exists()
        except OSError:
            is_closed = False
        yield is_closed
    finally:
        os.close(descriptor)
