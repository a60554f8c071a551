"""Stores an agent's transitions in append-only segments, one file per writer.

Each writer owns its file, so that records of several writers never interleave, and appends each
record by one ``write``, so that a killed writer leaves at most one torn record. Readers need no
lock. A writer's shared lock tells `compact` that its segment may grow; a segment that `compact` has
moved to Parquet is read from there, under its name and with its offsets.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from infrastructure.agent_contract.transition import Transition
from infrastructure.files import flush_folder
from infrastructure.trajectories.parquet_segments import (
    Compacted,
    find_compacted,
    hash_of_segment,
    read_parquet_segment,
    restored_lines,
)
from infrastructure.trajectories.record import encode_record
from infrastructure.trajectories.segments import (
    SEGMENT_SUFFIX,
    OnSkip,
    count_lines,
    next_number,
    ranges_from_end,
    read_segment,
    whole_length,
)

_DIGEST_BYTES = 1 << 20  # read at once


class ReplayBufferWriteError(OSError):
    """A record could not be written completely.

    Args:
        path: Segment file.
        cause: Error of the operating system.
    """

    def __init__(self, path: Path, cause: OSError) -> None:
        remedy = "free space on that file system, or move the agent's folder to a larger one"
        if cause.errno in (errno.ENOTDIR, errno.EEXIST):
            remedy = "a parent of that path is a file, not a folder: move it away"
        elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = "give this user write permission there"
        problem = cause.strerror or str(cause)
        super().__init__(
            f"cannot record a transition in {path}: {problem}. Everything recorded before is kept; "
            f"{remedy}"
        )
        self.path = path


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferSnapshot:
    """Length of each segment at one moment, so that a resumed attempt reads the same data.

    Attributes:
        lengths: Length in bytes by segment name; each ends after a complete record.
    """

    lengths: Mapping[str, int]

    def to_json(self) -> dict[str, int]:
        """Return the snapshot as a JSON object."""
        return dict(self.lengths)

    @classmethod
    def from_json(cls, value: object) -> BufferSnapshot:
        """Rebuild the snapshot that `to_json` wrote.

        Raises:
            ValueError: *value* does not map segment names to lengths.
        """
        if not isinstance(value, dict) or not all(
            isinstance(name, str)
            and name == Path(name).name
            and isinstance(length, int)
            and length >= 0
            for name, length in value.items()
        ):
            raise ValueError(f"a buffer snapshot maps segment names to lengths, got {value!r:.80}")
        return cls(lengths=dict(value))


class ReplayBuffer:
    """Appends transitions to a folder and reads them back.

    Args:
        folder: Folder of the segments; the first `append` creates it.
        on_skip: Callback for each torn or altered record: segment, byte offset, reason.
    """

    def __init__(self, folder: Path, on_skip: OnSkip | None = None) -> None:
        self._folder = folder
        self._on_skip = on_skip or _ignore
        self._segment: Path | None = None
        self._descriptor = -1
        self._torn = False

    def append(self, transition: Transition) -> None:
        """Record *transition*; it survives this process and, after `flush`, a power failure.

        Raises:
            ValueError: A value of *transition* cannot be recorded; the message names it.
            ReplayBufferWriteError: The record could not be written, for example to a full disk.
        """
        record = encode_record(transition)
        if self._torn:
            record = b"\n" + record  # terminates the partial record of a short write
        path = self._segment or self._next_segment()
        try:
            if self._descriptor < 0:
                path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._descriptor = os.open(path, flags, 0o640)
                self._segment = path
                with suppress(OSError):  # a file system without locks: nothing is compacted there
                    fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            written = os.write(self._descriptor, record)
        except OSError as error:
            raise ReplayBufferWriteError(path, error) from error
        self._torn = written < len(record)
        if self._torn:
            full = OSError(errno.ENOSPC, f"wrote only {written} of {len(record)} bytes")
            raise ReplayBufferWriteError(path, full) from full

    def flush(self) -> None:
        """Wait until all that this process appended is on the disk.

        Raises:
            ReplayBufferWriteError: The disk does not confirm the write.
        """
        if self._segment is None:
            return
        try:
            os.fsync(self._descriptor)
            flush_folder(self._folder)
        except OSError as error:
            raise ReplayBufferWriteError(self._segment, error) from error

    def close(self) -> None:
        """Flush and close this process's segment; a later `append` begins a new one."""
        if self._segment is None:
            return
        self.flush()
        os.close(self._descriptor)
        self._segment, self._descriptor, self._torn = None, -1, False

    def snapshot(self) -> BufferSnapshot:
        """Return the lengths readable now; report torn last records and unreadable segments."""
        lengths = {}
        for path in sorted(self._folder.glob(f"*{SEGMENT_SUFFIX}")):
            try:
                size = path.stat().st_size
                whole = whole_length(path, size)
            except FileNotFoundError:  # compacted meanwhile
                continue
            except OSError as error:  # for example a file of another user
                self._on_skip(path, 0, f"cannot be read: {error.strerror}")
                continue
            lengths[path.name] = self._whole(path, size, whole)
        for name, (_, segment) in find_compacted(self._folder, self._on_skip).items():
            if name not in lengths:
                path = self._folder / name
                lengths[name] = self._whole(path, segment.size, segment.whole)
        return BufferSnapshot(
            lengths={name: length for name, length in sorted(lengths.items()) if length}
        )

    def read(self, snapshot: BufferSnapshot | None = None) -> BufferView:
        """Return the transitions of *snapshot*, or all that are readable now.

        Segments come oldest first, records in recorded order: two reads of one snapshot give the
        same transitions in the same order.
        """
        return BufferView(self._folder, snapshot or self.snapshot(), self._on_skip)

    def digest(self, snapshot: BufferSnapshot) -> str:
        """SHA-256 of the segments of *snapshot*: of their names, lengths and hashes, in order.

        Raises:
            OSError: A segment cannot be read.
        """
        digest = hashlib.sha256()
        for name, length in sorted(snapshot.lengths.items()):
            try:
                own = _hash_of_file(self._folder / name, length)
            except FileNotFoundError:
                own = hash_of_segment(*self._compacted(name), length)
            digest.update(f"{name} {length} {own}\n".encode())
        return digest.hexdigest()

    def copy_segment(self, name: str, length: int, target: BinaryIO) -> int:
        """Write the first *length* bytes of the segment *name* to *target*, as they were recorded.

        Returns:
            Number of bytes written; fewer if the segment is shorter.

        Raises:
            OSError: The segment cannot be read, or *target* not be written.
        """
        try:
            with (self._folder / name).open("rb") as file:
                return _copy(iter(partial(file.read, _DIGEST_BYTES), b""), length, target)
        except FileNotFoundError:
            return _copy(restored_lines(*self._compacted(name)), length, target)

    def _compacted(self, name: str) -> Compacted:
        """The Parquet file with the segment *name*.

        Raises:
            FileNotFoundError: There is none.
        """
        found = find_compacted(self._folder, self._on_skip)
        if name not in found:
            path = self._folder / name
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return found[name]

    def _whole(self, path: Path, size: int, whole: int) -> int:
        """Report the incomplete last record of a segment, if it has one; return *whole*."""
        if whole < size:
            self._on_skip(path, whole, "last record is incomplete: its writer was interrupted")
        return whole

    def _next_segment(self) -> Path:
        number = next_number(self._folder)
        return self._folder / f"{number:08d}-{os.getpid()}-{secrets.token_hex(4)}{SEGMENT_SUFFIX}"


class BufferView:
    """The transitions of one snapshot; each iteration reads them from disk.

    Segments that are missing or shorter than in the snapshot are reported; the rest is read.
    """

    def __init__(self, folder: Path, snapshot: BufferSnapshot, on_skip: OnSkip) -> None:
        self._folder = folder
        self._on_skip = on_skip
        self._length: int | None = None
        self._compacted: dict[str, Compacted] | None = None
        self.snapshot = snapshot

    def __iter__(self) -> Iterator[Transition]:
        count = 0
        for transition in self._transitions(self._on_skip):
            count += 1
            yield transition
        self._length = count

    def __reversed__(self) -> Iterator[Transition]:
        """Yield the transitions from the newest on; what is not reached is not read."""
        count = 0
        for name, length in sorted(self.snapshot.lengths.items(), reverse=True):
            for transition in self._read_backwards(name, length):
                count += 1
                yield transition
        self._length = count

    def __len__(self) -> int:
        """Number of readable transitions; reads them all unless an iteration has done so."""
        if self._length is None:
            self._length = sum(1 for _ in self._transitions(_ignore))
        return self._length

    def at_most(self) -> int:
        """Number of records, readable or not; much faster than to read them."""
        if self._length is not None:
            return self._length
        count = 0
        for name, length in self.snapshot.lengths.items():
            try:
                count += count_lines(self._folder / name, length)
            except FileNotFoundError:
                found = self._find(name)
                count += found[1].rows if found else 0
            except OSError:  # reported where it is read
                continue
        return count

    def _transitions(self, on_skip: OnSkip) -> Iterator[Transition]:
        for name, length in sorted(self.snapshot.lengths.items()):
            path = self._folder / name
            try:
                yield from read_segment(path, 0, length, on_skip)
            except FileNotFoundError as error:
                yield from self._read_compacted(name, length, on_skip, error)

    def _read_backwards(self, name: str, length: int) -> Iterator[Transition]:
        path = self._folder / name
        try:
            for start, end in ranges_from_end(path, length):
                yield from reversed([*read_segment(path, start, end, self._on_skip)])
        except FileNotFoundError as error:
            yield from self._read_compacted(name, length, self._on_skip, error, newest_first=True)
        except OSError as error:
            self._on_skip(path, 0, f"cannot be read: {error.strerror}")

    def _read_compacted(
        self,
        name: str,
        length: int,
        on_skip: OnSkip,
        missing: FileNotFoundError,
        *,
        newest_first: bool = False,
    ) -> Iterator[Transition]:
        """Read a segment that is not a file of its own."""
        found = self._find(name)
        if found is None:
            on_skip(self._folder / name, 0, f"cannot be read: {missing.strerror}")
        else:
            yield from read_parquet_segment(*found, length, on_skip, newest_first=newest_first)

    def _find(self, name: str) -> Compacted | None:
        """The Parquet file with the segment *name*."""
        if self._compacted is None or name not in self._compacted:  # perhaps compacted since
            self._compacted = find_compacted(self._folder, _ignore)
        return self._compacted.get(name)


def _ignore(_path: Path, _offset: int, _reason: str) -> None:
    """Default callback: do not report."""


def _copy(chunks: Iterator[bytes], length: int, target: BinaryIO) -> int:
    copied = 0
    for chunk in chunks:
        copied += target.write(chunk[: length - copied])
        if copied == length:
            break
    return copied


def _hash_of_file(path: Path, length: int) -> str:
    """SHA-256 of the first *length* bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while length and (chunk := file.read(min(length, _DIGEST_BYTES))):
            digest.update(chunk)
            length -= len(chunk)
    return digest.hexdigest()
