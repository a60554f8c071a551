"""The event file of an attempt: appended by the worker, tailed by the daemon.

A file instead of a pipe: a stalled reader does not stall training, torchrun does not close it,
and a remote executor needs one anyway.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from infrastructure.events.event import EVENT_ADAPTER, BaseEvent, Event, Notice, Progress

LONGEST_LINE = 1 << 19  # bytes; the longest event, a pre-flight report, has some 150 per module
MAX_WAITING_BYTES = 1 << 18  # of events without room on the disk: minutes of a training
_READ_BYTES = 1 << 16


class NotAnEventFileError(OSError):
    """A path where an event file belongs holds something else, which is not opened or read."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            errno.EINVAL,
            "not a regular file; a worker's event file must not be replaced by a link, a pipe, a "
            "device or a folder",
            str(path),
        )


class EventWriter:
    """Appends events, one line each: a reader sees whole lines and perhaps a partial last one.

    No event is lost on a disk that has no room for it: it waits in memory, and every later call
    writes what waits first, in order. A line that was written in part is completed then.

    Args:
        path: The attempt's event file; created, or appended to.
        clock: Unix time in seconds.

    Attributes:
        waiting_bytes: Size of what could not be written yet.
        error: Why it could not be written; None if nothing waits.
        dropped: Notices and reports of progress dropped because too much waited.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._writing = False
        self._waiting: deque[bytes] = deque()
        self.waiting_bytes = self.dropped = 0
        self.error: OSError | None = None
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            self._append(b"\n")  # an earlier writer died within a line: it must not spoil ours

    @property
    def is_crowded(self) -> bool:
        """Whether so much waits that the caller should pause until `flush` returns True."""
        return self.waiting_bytes > MAX_WAITING_BYTES

    def __call__(self, event: BaseEvent) -> None:
        """Append *event* with the current time, or let it wait; never raises an `OSError`.

        If four times `MAX_WAITING_BYTES` wait, a notice or a report of progress is dropped instead:
        plugin code may send any number of them while nobody can pause it.
        """
        now = self._clock()
        with self._lock:
            self.flush()
            if self.waiting_bytes > 4 * MAX_WAITING_BYTES and isinstance(event, Notice | Progress):
                self.dropped += 1
                return
            self._append(_line(event, now))
            self.flush()

    def flush(self) -> bool:
        """Write what waits; return whether all of it is written."""
        with self._lock:
            if not self._writing:  # else a signal handler or destructor emits within this call
                self._writing = True
                try:
                    self._write_waiting()
                finally:
                    self._writing = False
            return not self._waiting

    def _append(self, line: bytes) -> None:
        self._waiting.append(line)
        self.waiting_bytes += len(line)

    def _write_waiting(self) -> None:
        while self._waiting:
            try:
                written = os.write(self._descriptor, self._waiting[0])
            except OSError as error:
                self.error = error
                return
            self.waiting_bytes -= written
            self._waiting[0] = self._waiting[0][written:]
            if not self._waiting[0]:
                self._waiting.popleft()
            if not self._waiting and self.dropped:
                fields = {"events": str(self.dropped), "error": str(self.error)}
                self.dropped = 0
                notice = Notice(level="warning", event="events_dropped", fields=fields)
                self._append(_line(notice, self._clock()))
        self.error = None

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _line(event: BaseEvent, now: float) -> bytes:
    return event.model_copy(update={"time": now}).model_dump_json().encode() + b"\n"


class EventTail:
    """Reads the complete lines that an event file has gained, in bites of a bounded size.

    Args:
        path: The attempt's event file; need not exist yet.
        offset: Byte offset to read from, as left in `offset` by an earlier reader.
        end: Byte offset at which reading ends.
        longest_backlog: Bytes that may be waiting; beyond that the oldest of them are skipped. By
            default none is.
        clock: Monotonic seconds.

    Attributes:
        offset: Byte offset after the last complete line read.
        behind: Whether the last `read` has left complete lines for the next one.
        malformed: Lines skipped so far because they are not an event that this version knows, or
            are longer than `LONGEST_LINE`.
        skipped_bytes: Bytes skipped so far because too many were waiting.
    """

    def __init__(
        self,
        path: Path,
        offset: int = 0,
        *,
        end: float = math.inf,
        longest_backlog: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.offset = offset
        self.behind = False
        self.malformed = 0
        self.skipped_bytes = 0
        self._path, self._longest_backlog, self._clock = path, longest_backlog, clock
        self._end = end
        self._within_line = False  # skip the rest of the line that `offset` is in

    def read(self, deadline: float = math.inf) -> Iterator[Event]:
        """Yield the events up to the present end of the file; an incomplete last line waits.

        At least one line is read. After it, reading ends as soon as the *deadline*, in monotonic
        seconds, has passed; the time that the caller spends on each event counts.

        Raises:
            NotAnEventFileError: The path is not a regular file; links are not followed.
            OSError: The file cannot be read.
        """
        try:
            descriptor = _open_regular(self._path)
        except FileNotFoundError:
            self.behind = False
            return
        try:
            size = int(min(os.fstat(descriptor).st_size, self._end))
            self._shorten_backlog(size)
            for line in self._lines(descriptor, size):
                event = None if line is None else self._parse(line)
                if event is not None:
                    yield event
                if self._clock() >= deadline:
                    self.behind = self.offset < size
                    return
            self.behind = False
        finally:
            os.close(descriptor)

    def end_here(self) -> None:
        """Ignore what is appended from now on: the writer has ended. `behind` until a read."""
        with suppress(OSError):  # `read` raises it
            descriptor = _open_regular(self._path)  # NFS asks for the size when a file is opened
            self._end = os.fstat(descriptor).st_size
            os.close(descriptor)
        self.behind = True

    def _lines(self, descriptor: int, size: int) -> Iterator[bytes | None]:
        """Yield the complete lines before *size*.

        Yields an empty line for one that is too long, and None for each further part of it.
        `offset` moves behind each before it is yielded.
        """
        position = self.offset
        buffer = b""
        while position < size:
            chunk = os.pread(descriptor, min(_READ_BYTES, size - position), position)
            if not chunk:
                return  # the file has become shorter
            position += len(chunk)
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                self.offset += len(line) + 1
                rest, self._within_line = self._within_line, False
                if not rest:
                    yield line
            if len(buffer) > LONGEST_LINE:
                self.offset, buffer = position, b""
                rest, self._within_line = self._within_line, True
                yield None if rest else b""

    def _parse(self, line: bytes) -> Event | None:
        try:
            return EVENT_ADAPTER.validate_json(line)
        except ValidationError:
            self.malformed += 1
            return None

    def _shorten_backlog(self, size: int) -> None:
        """Skip to the newest quarter of the longest backlog, if there is more."""
        if size - self.offset > self._longest_backlog:
            offset = size - int(self._longest_backlog) // 4
            self.skipped_bytes += offset - self.offset
            self.offset, self._within_line = offset, True


def read_events(path: Path) -> Iterator[Event]:
    """Yield all events that the file at *path* holds; none if it does not exist.

    Raises:
        NotAnEventFileError: The path is not a regular file.
        OSError: The file cannot be read.
    """
    return EventTail(path).read()


def _open_regular(path: Path) -> int:
    """Open the file for reading without following a link or waiting for a pipe's writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotAnEventFileError(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAnEventFileError(path)
    return descriptor
