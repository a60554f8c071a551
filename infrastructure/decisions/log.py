"""An agent's log of decisions: append-only segments, written by one process, read by any.

A batch of records is on the disk when `DecisionLog.append` returns. After an error none of the
batch stays, so that a client may send it again. A process that was killed leaves at most one torn
line, which the next writer cuts off and readers leave out.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from infrastructure.decisions.records import (
    BEGINNING,
    DamagedLineError,
    LogRecord,
    Place,
    decode_line,
    encode_line,
)
from infrastructure.files import flush_folder
from infrastructure.trajectories.segments import whole_length

LOG_FOLDER = "decisions"  # in the agent's folder
LOGS_ELSEWHERE = "decisions-elsewhere"  # there: copies of logs of predictors on other machines
SEGMENT_BYTES = 16 << 20  # a segment takes no further batch when it is larger
_SUFFIX, _LOCK = ".ndjson", ".writer.lock"

OnDamage = Callable[[Path, int, str], None]
"""Receives each line that is left out: segment, byte offset, reason."""


class LogWriteError(OSError):
    """A batch could not be written; none of it stays in the log.

    Args:
        folder: Folder of the log.
        cause: Error of the operating system.
    """

    def __init__(self, folder: Path, cause: OSError) -> None:
        super().__init__(
            f"cannot record in {folder}: {cause.strerror or cause}. All that was acknowledged is "
            "kept; free space on that file system, or give this user write permission there"
        )
        self.errno = cause.errno


class LogBusyError(LogWriteError):
    """Another process writes to the log."""

    def __init__(self, folder: Path) -> None:
        busy = OSError(errno.EBUSY, "another predictor still writes there: try again in a second")
        super().__init__(folder, busy)


class DecisionLog:
    """Writer of one agent's log; opens the files with the first `append`.

    Args:
        folder: Folder of the segments; the first `append` creates it.
        segment_bytes: Size from which on a new segment is begun.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder, self._segment_bytes = folder, segment_bytes
        self._lock = self._descriptor = -1
        self._number = self._size = 0

    def append(self, records: Sequence[LogRecord]) -> list[Place]:
        """Write *records* and wait until they are on the disk; return where each begins.

        Raises:
            LogBusyError: Another process writes to this log.
            LogWriteError: The disk is full or fails; nothing of *records* stays.
        """
        lines = [encode_line(record) for record in records]
        try:
            self.open()
            if self._descriptor < 0 or self._size >= self._segment_bytes:
                self._begin_segment()
            self._write(b"".join(lines))
        except LogBusyError:
            raise
        except OSError as error:
            raise LogWriteError(self.folder, error) from error
        places = []
        for line in lines:
            places.append(Place(self._number, self._size))
            self._size += len(line)
        return places

    def open(self) -> None:
        """Become the writer, and cut off what a killed writer has left of its last line.

        Raises:
            LogBusyError: Another process writes to this log.
            OSError: A file cannot be opened.
        """
        if self._lock >= 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._continue_segment()
        except BlockingIOError:
            os.close(lock)
            raise LogBusyError(self.folder) from None
        except OSError:
            os.close(lock)
            raise
        self._lock = lock

    def read(self, place: Place) -> LogRecord:
        """The record at *place*.

        Raises:
            OSError, DamagedLineError: It cannot be read.
        """
        return read_record(self.folder, place)

    def close(self) -> None:
        """Close the files; another process may write then."""
        for descriptor in (self._descriptor, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._descriptor = -1

    def _write(self, content: bytes) -> None:
        try:
            written = os.write(self._descriptor, content)
            if written < len(content):
                raise OSError(errno.ENOSPC, f"wrote only {written} of {len(content)} bytes")
            os.fsync(self._descriptor)
        except OSError:
            self._take_back()
            raise

    def _take_back(self) -> None:
        """Cut off a failed batch; the next one begins a new segment."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._size)
            os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1

    def _begin_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._number = max(segments(self.folder), default=0) + 1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(segment_path(self.folder, self._number), flags, 0o640)
        self._size = 0
        flush_folder(self.folder)

    def _continue_segment(self) -> None:
        numbers = segments(self.folder)
        if not numbers:
            return
        path = segment_path(self.folder, numbers[-1])
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            whole = whole_length(path, size)
            if whole < size:
                os.ftruncate(descriptor, whole)
                os.fsync(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._number, self._size = descriptor, numbers[-1], whole


def logs_of(agent_folder: Path) -> dict[str, Path]:
    """Folders of the agent's logs by source: its own, named by '', and copies of others."""
    elsewhere = (path for path in (agent_folder / LOGS_ELSEWHERE).glob("*") if path.is_dir())
    return {"": agent_folder / LOG_FOLDER} | {path.name: path for path in sorted(elsewhere)}


def segments(folder: Path) -> list[int]:
    """Numbers of the segments in *folder*, oldest first."""
    stems = (path.stem for path in folder.glob(f"*{_SUFFIX}"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def segment_path(folder: Path, number: int) -> Path:
    """File of the segment *number*."""
    return folder / f"{number:08d}{_SUFFIX}"


def read_record(folder: Path, place: Place) -> LogRecord:
    """The record at *place* of the log in *folder*.

    Raises:
        OSError, DamagedLineError: It cannot be read.
    """
    with segment_path(folder, place.segment).open("rb") as file:
        file.seek(place.offset)
        return decode_line(file.readline())


def read_records(
    folder: Path, start: Place = BEGINNING, on_damage: OnDamage | None = None
) -> Iterator[tuple[Place, Place, LogRecord]]:
    """Yield the records from *start* on: where each begins, where it ends, and the record.

    A torn last line, which its writer may be writing now, is left out.

    Raises:
        OSError: A segment cannot be read.
    """
    for number in segments(folder):
        if number < start.segment:
            continue
        path = segment_path(folder, number)
        offset = start.offset if number == start.segment else 0
        with path.open("rb") as file:
            file.seek(offset)
            while (line := file.readline()).endswith(b"\n"):
                begin, offset = offset, offset + len(line)
                if line.isspace():  # removed
                    continue
                try:
                    record = decode_line(line)
                except DamagedLineError as error:
                    if on_damage is not None:
                        on_damage(path, begin, str(error))
                    continue
                yield Place(number, begin), Place(number, offset), record
