"""The event file of an attempt: appended by the worker, tailed by the daemon.

A file instead of a pipe: a stalled reader does not stall training, torchrun does not close it,
and a remote executor needs one anyway.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from infrastructure.events.event import EVENT_ADAPTER, BaseEvent, Event, Notice, Progress

MAX_READ_BYTES = 1 << 20
MAX_WAITING_BYTES = 1 << 18  # of events without room on the disk: minutes of a training


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
    """Reads the complete lines that an event file has gained.

    Args:
        path: The attempt's event file; need not exist yet.
        offset: Byte offset to read from, as left in `offset` by an earlier reader.

    Attributes:
        offset: Byte offset after the last complete line read.
        malformed: Lines skipped so far because they are not an event that this version knows.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self.offset = offset
        self.malformed = 0

    def read(self) -> Iterator[Event]:
        """Yield the events of the next `MAX_READ_BYTES`; an incomplete last line waits.

        Raises:
            OSError: The file cannot be read, or is not a regular file: a pipe is not waited for.
        """
        try:
            with open(self._path, "rb", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as file:
                file.seek(self.offset)
                data = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return
        for line in data.split(b"\n")[:-1]:
            self.offset += len(line) + 1
            try:
                yield EVENT_ADAPTER.validate_json(line)
            except ValidationError:
                self.malformed += 1
        if len(data) == MAX_READ_BYTES and b"\n" not in data:
            self.offset += len(data)  # no event is this long: skip it instead of stalling
            self.malformed += 1

    def read_to_end(self) -> Iterator[Event]:
        """Yield all events appended since the last call, as `read` does in one or more reads."""
        before = -1
        while self.offset != before:
            before = self.offset
            yield from self.read()


def read_events(path: Path) -> Iterator[Event]:
    """Yield all events that the file at *path* holds; none if it does not exist."""
    return EventTail(path).read_to_end()
