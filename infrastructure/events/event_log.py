"""The event file of an attempt: appended by the worker, tailed by the daemon.

A file instead of a pipe: a stalled reader does not stall training, torchrun does not close it,
and a remote executor needs one anyway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from infrastructure.events.event import EVENT_ADAPTER, BaseEvent, Event

MAX_READ_BYTES = 1 << 20


class EventWriter:
    """Appends events, one ``write`` each: a reader sees whole lines and perhaps a partial last one.

    Args:
        path: The attempt's event file; created, or appended to.
        clock: Unix time in seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)

    def __call__(self, event: BaseEvent) -> None:
        """Append *event* with the current time."""
        line = event.model_copy(update={"time": self._clock()}).model_dump_json()
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


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
