"""Stores an agent's transitions in append-only segments, one file per writer.

Each writer owns its file, so that records of several writers never interleave, and appends each
record by one ``write``, so that a killed writer leaves at most one torn record. Readers need no
lock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infrastructure.agent_contract.transition import Transition
from infrastructure.files import flush_folder
from infrastructure.trajectories.record import RecordError, decode_record, encode_record

_SUFFIX = ".jsonl"
_TAIL_BYTES = 1 << 16
_DIGEST_BYTES = 1 << 20  # read at once
_RANGE_BYTES = 1 << 24  # decoded at once by those who read from the end on

OnSkip = Callable[[Path, int, str], None]
"""Receives each skipped record: file, position (byte offset or line number), reason."""


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
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                size = path.stat().st_size
                whole = _whole_length(path, size)
            except OSError as error:  # for example a file of another user
                self._on_skip(path, 0, f"cannot be read: {error.strerror}")
                continue
            if whole < size:
                self._on_skip(path, whole, "last record is incomplete: its writer was interrupted")
            if whole:
                lengths[path.name] = whole
        return BufferSnapshot(lengths=lengths)

    def read(self, snapshot: BufferSnapshot | None = None) -> BufferView:
        """Return the transitions of *snapshot*, or all that are readable now.

        Segments come oldest first, records in recorded order: two reads of one snapshot give the
        same transitions in the same order.
        """
        return BufferView(self._folder, snapshot or self.snapshot(), self._on_skip)

    def digest(self, snapshot: BufferSnapshot) -> str:
        """SHA-256 of the segments of *snapshot*: their names, lengths and bytes, in order.

        Raises:
            OSError: A segment cannot be read.
        """
        digest = hashlib.sha256()
        for name, length in sorted(snapshot.lengths.items()):
            digest.update(f"{name} {length}\n".encode())
            with (self._folder / name).open("rb") as file:
                left = length
                while left and (chunk := file.read(min(left, _DIGEST_BYTES))):
                    digest.update(chunk)
                    left -= len(chunk)
        return digest.hexdigest()

    def _next_segment(self) -> Path:
        numbers = [path.name.partition("-")[0] for path in self._folder.glob(f"*{_SUFFIX}")]
        number = 1 + max((int(text) for text in numbers if text.isdecimal()), default=0)
        return self._folder / f"{number:08d}-{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"


class BufferView:
    """The transitions of one snapshot; each iteration reads them from disk.

    Segments that are missing or shorter than in the snapshot are reported; the rest is read.
    """

    def __init__(self, folder: Path, snapshot: BufferSnapshot, on_skip: OnSkip) -> None:
        self._folder = folder
        self._on_skip = on_skip
        self._length: int | None = None
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
            for start, end in _ranges_from_end(self._folder / name, length):
                together = [*self._read_segment(name, end, self._on_skip, start)]
                count += len(together)
                yield from reversed(together)
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
        segments = self.snapshot.lengths.items()
        return sum(_count_lines(self._folder / name, length) for name, length in segments)

    def _transitions(self, on_skip: OnSkip) -> Iterator[Transition]:
        for name, length in sorted(self.snapshot.lengths.items()):
            yield from self._read_segment(name, length, on_skip)

    def _read_segment(
        self, name: str, length: int, on_skip: OnSkip, start: int = 0
    ) -> Iterator[Transition]:
        path, offset = self._folder / name, start
        try:
            with path.open("rb") as file:
                file.seek(start)
                while offset < length and (line := file.readline()):
                    transition = _decode(line.rstrip(b"\n"), path, offset, on_skip)
                    offset += len(line)
                    if transition is not None:
                        yield transition
        except OSError as error:
            on_skip(path, offset, f"cannot be read: {error.strerror}")
            return
        if offset < length:
            on_skip(path, offset, f"{length - offset} bytes are missing since the snapshot")


def _ignore(_path: Path, _offset: int, _reason: str) -> None:
    """Default callback: do not report."""


def _decode(line: bytes, path: Path, offset: int, on_skip: OnSkip) -> Transition | None:
    try:
        return decode_record(line)
    except RecordError as error:
        on_skip(path, offset, str(error))
        return None


def _ranges_from_end(path: Path, length: int) -> Iterator[tuple[int, int]]:
    """Cut the first *length* bytes into ranges of whole lines, the last range first."""
    end = length
    while end > _RANGE_BYTES:
        try:
            start = _whole_length(path, end - _RANGE_BYTES)
        except OSError:  # reported where it is read
            break
        yield start, end
        end = start
    if end or not length:
        yield 0, end


def _count_lines(path: Path, length: int) -> int:
    """Number of lines in the first *length* bytes; 0 if they cannot be read."""
    count = 0
    try:
        with path.open("rb") as file:
            while length and (chunk := file.read(min(length, _DIGEST_BYTES))):
                count += chunk.count(b"\n")
                length -= len(chunk)
    except OSError:  # reported where it is read
        pass
    return count


def _whole_length(path: Path, size: int) -> int:
    """Return the length up to and including the last newline in the first *size* bytes."""
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
