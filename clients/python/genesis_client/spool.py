"""Reports that wait on disk until the predictor has taken them.

A line is a checksum, the end of a path, and JSON: ``1a2b3c4d transitions {"id": ...}``. Each
process locks a file of its own, ``0.spool``, ``1.spool`` and so on, and appends with one write
before the call returns: a report survives the end of the process. Nothing is fsynced, so a power
failure may take the last seconds. A file is emptied once all of it has been taken; a process
that dies in between leaves the rest to the next one, and the predictor knows repeated reports by
their ids.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MOST_LINE = 4 << 20  # the predictor takes no larger body
MOST_MEMORY = 1 << 20
MOST_BATCH_BYTES, MOST_BATCH = 1 << 20, 1000
MOST_FILES = 1000
BATCHED = ("choices", "transitions")  # the others are sent one by one
_CHUNK = 256 << 10
_TAIL = re.compile(rb"transitions|choices|decisions/[A-Za-z0-9._-]{1,64}/outcome")


class Batch(NamedTuple):
    """Reports that go to the same path, as JSON."""

    tail: str
    reports: list[bytes]


def make_line(tail: str, report: bytes) -> bytes:
    """Return the line of a report."""
    content = tail.encode("ascii") + b" " + report
    return b"%08x %s\n" % (zlib.crc32(content), content)


def parse_line(line: bytes) -> tuple[str, bytes] | None:
    """Return path and report of a line without its end, or None if it is damaged."""
    checksum, _, content = line.partition(b" ")
    tail, _, report = content.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(content) or not _TAIL.fullmatch(tail):
        return None
    return tail.decode("ascii"), report


class SpoolFile:
    """A locked file of reports. One thread may append while another one reads.

    Attributes:
        damaged: Lines that were left out because their checksum is wrong.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self.damaged = 0
        self._cut_torn_line()
        self._buffer, self._cursor = b"", 0
        self._read = 0  # bytes of the file that the buffer holds, or held before
        self._held: tuple[str, bytes] | None = None  # was read, and did not fit a batch

    @classmethod
    def open_locked(cls, path: Path) -> SpoolFile | None:
        """Open and lock the file; None if another process has it.

        Raises:
            OSError: It can be neither opened nor created.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def size(self) -> int:
        """Bytes in the file; 0 once all reports have been taken."""
        return self._size

    @property
    def inode(self) -> int:
        """Number of the file."""
        return os.fstat(self._descriptor).st_ino

    def append(self, line: bytes) -> None:
        """Write a line, all of it or nothing.

        Raises:
            OSError: The disk is full, or fails.
        """
        try:
            written = os.pwrite(self._descriptor, line, self._size)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written")
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)

    def next_batch(self) -> Batch | None:
        """Read the next reports that one request can carry; None at the end."""
        first = self._take()
        if first is None:
            return None
        tail, report = first
        reports, size = [report], len(report)
        while tail in BATCHED and len(reports) < MOST_BATCH:
            following = self._take()
            if following is None:
                break
            size += len(following[1])
            if following[0] != tail or size > MOST_BATCH_BYTES:
                self._held = following
                break
            reports.append(following[1])
        return Batch(tail, reports)

    def empty_if_read(self) -> None:
        """Give the space back, if everything in the file has been read."""
        all_taken = self._held is None and self._cursor == len(self._buffer)
        if self._size and self._read == self._size and all_taken:
            os.ftruncate(self._descriptor, 0)
            self._size = self._read = self._cursor = 0
            self._buffer = b""

    def close(self) -> None:
        """Close the file, which ends the lock."""
        os.close(self._descriptor)

    def _cut_torn_line(self) -> None:
        """Remove what a process that was killed within a write has left."""
        if not self._size or os.pread(self._descriptor, 1, self._size - 1) == b"\n":
            return
        ended = False
        while self._size and not ended:
            begin = max(0, self._size - MOST_LINE)
            end = os.pread(self._descriptor, self._size - begin, begin).rfind(b"\n") + 1
            ended, self._size = end > 0, begin + end
        os.ftruncate(self._descriptor, self._size)
        self.damaged += 1

    def _take(self) -> tuple[str, bytes] | None:
        if (held := self._held) is not None:
            self._held = None
            return held
        while (line := self._next_line()) is not None:
            if (found := parse_line(line)) is not None:
                return found
            self.damaged += bool(line.strip())  # a blank one was removed by an operator
        return None

    def _next_line(self) -> bytes | None:
        while (end := self._buffer.find(b"\n", self._cursor)) < 0:
            chunk = os.pread(self._descriptor, min(_CHUNK, self._size - self._read), self._read)
            if not chunk:
                return None
            self._read += len(chunk)
            rest = self._buffer[self._cursor :]
            if len(rest) > MOST_LINE:
                rest = b""
                self.damaged += 1
            self._buffer, self._cursor = rest + chunk, 0
        line = self._buffer[self._cursor : end]
        self._cursor = end + 1
        return line


class Spool:
    """Reports of one process that wait; safe to use from several threads.

    While the disk takes nothing, up to 1 MiB of reports waits in memory.

    Args:
        folder: Folder of the agent; made when the first report is written.
        limit_bytes: Largest size of the file of this process. What does not fit is dropped.

    Attributes:
        dropped: Reports for which there was no room.
        folder: The folder.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._file: SpoolFile | None = None
        self._borrowed: SpoolFile | None = None
        self._memory: deque[tuple[str, bytes]] = deque()
        self._memory_bytes = 0
        self._batch: Batch | None = None
        self._damaged_before = 0  # lines of files that are closed
        self.dropped = 0

    @property
    def waiting_bytes(self) -> int:
        """Size of this process's file, until all of it has been taken, and of memory."""
        file = self._file
        return (0 if file is None else file.size) + self._memory_bytes

    @property
    def damaged(self) -> int:
        """Lines that were left out because their checksum is wrong."""
        files = (self._file, self._borrowed)
        return self._damaged_before + sum(file.damaged for file in files if file is not None)

    def append(self, tail: str, report: bytes) -> bool:
        """Keep a report; False if there is no room for it."""
        line = make_line(tail, report)
        with self._lock:
            kept = len(line) <= MOST_LINE and self._keep(line, tail, report)
            self.dropped += not kept
            return kept

    def head(self) -> Batch | None:
        """Return the reports to send next; the same ones until `done` is called."""
        if self._batch is None and self._file is not None:
            self._batch = self._file.next_batch()
        with self._lock:
            if self._batch is None and self._file is not None:
                self._file.empty_if_read()  # all lines were damaged
            if self._batch is None and self._memory:
                self._batch = Batch(self._memory[0][0], [self._memory[0][1]])
            return self._batch

    def done(self) -> None:
        """Forget the reports that `head` has returned: the predictor has taken or refused them."""
        with self._lock:
            if self._batch is None:
                return
            if self._memory and self._batch.reports[0] is self._memory[0][1]:
                _, report = self._memory.popleft()
                self._memory_bytes -= len(report)
            elif self._file is not None:
                self._file.empty_if_read()
            self._batch = None

    def abandoned(self) -> Iterator[SpoolFile]:
        """Lock in turn each file with reports that no process has."""
        for path in sorted(self.folder.glob("*.spool")):
            try:
                file = SpoolFile.open_locked(path) if path.stat().st_size else None
            except OSError:
                continue  # another user's, or removed meanwhile
            if file is not None:
                self._borrowed = file
                try:
                    yield file
                finally:
                    self._damaged_before += file.damaged
                    self._borrowed = None
                    file.close()

    def others_wait(self) -> bool:
        """Whether reports wait in files other than those that this process sends."""
        ours = {file.inode for file in (self._file, self._borrowed) if file is not None}
        for path in self.folder.glob("*.spool"):
            with suppress(OSError):  # removed meanwhile
                status = path.stat()
                if status.st_size and status.st_ino not in ours:
                    return True
        return False

    def close(self) -> None:
        """Leave the file to other processes; a later report opens one again."""
        with self._lock:
            if self._file is not None:
                self._damaged_before += self._file.damaged
                self._file.close()
            self._file = self._batch = None

    def forget(self) -> None:
        """Close the files of the parent process in a forked child, which keeps no lock of them."""
        for file in (self._file, self._borrowed):
            if file is not None:
                file.close()

    def _keep(self, line: bytes, tail: str, report: bytes) -> bool:
        if not self._memory:  # else the report is later than those in memory
            try:
                file = self._own_file()
                if file.size + len(line) > self._limit_bytes:
                    return False
                file.append(line)
            except OSError:
                pass  # a full or failing disk: see below
            else:
                return True
        if self._memory_bytes + len(report) > MOST_MEMORY:
            return False
        self._memory.append((tail, report))
        self._memory_bytes += len(report)
        return True

    def _own_file(self) -> SpoolFile:
        if self._file is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for number in range(MOST_FILES):
                self._file = SpoolFile.open_locked(self.folder / f"{number}.spool")
                if self._file is not None:
                    return self._file
            raise OSError(f"{MOST_FILES} processes use {self.folder}")
        return self._file
