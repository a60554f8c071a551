"""One deadline for a whole request: the timeout of a socket holds for each read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection


@contextmanager
def cut_after(connection: HTTPConnection, seconds: float) -> Iterator[threading.Event]:
    """Shut the *connection*, which must be open, if the block takes longer than *seconds*.

    Yields:
        Whether it was shut: the read or write under way fails, or its answer is incomplete.
    """
    late = threading.Event()
    alarm = threading.Timer(seconds, _cut, (connection, late))
    alarm.daemon = True
    alarm.start()
    try:
        yield late
    finally:
        alarm.cancel()


def _cut(connection: HTTPConnection, late: threading.Event) -> None:
    late.set()
    with suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)
