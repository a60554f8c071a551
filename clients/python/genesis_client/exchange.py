"""HTTP/1.1 over kept connections, each exchange before a deadline.

`http.client` takes 20 ms to import, and its timeouts bound each read instead of the answer.
"""

from __future__ import annotations

import re
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from genesis_client.place import Place

if TYPE_CHECKING:
    import ssl

PROTOCOL = "1"
MOST_HEAD = 32 << 10
MOST_BODY = 8 << 20
MOST_IDLE = 8  # connections that are kept
_CHUNK = 64 << 10
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?")
_LENGTH = re.compile(r"[0-9]{1,10}")


class UnavailableError(Exception):
    """The predictor cannot be asked, or its answer cannot be used.

    Attributes:
        at_once: Whether nothing listens there: asking again at once would fail, too.
        retry_after: Seconds after which the predictor wants to be asked again, or 0.
    """

    def __init__(self, reason: str, *, at_once: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.at_once = at_once
        self.retry_after = retry_after


class _ClosedError(Exception):
    """The connection ended before the first byte of an answer."""


class Answer(NamedTuple):
    """Answer of any status."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connections:
    """Asks one predictor; several threads may ask at once, each over a connection of its own."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: deque[socket.socket] = deque()
        self._tls = _tls_context() if place.tls else None
        self._addresses: list[tuple[Any, ...]] = []
        self.resolve()
        host = f"{place.host}:{place.port}" if place.host else "localhost"
        head = f"Host: {host}\r\nGenesis-Protocol: {PROTOCOL}\r\n"
        if place.token:
            head += f"Authorization: Bearer {place.token}\r\n"
        self._head = f"{head}Content-Type: application/json\r\nContent-Length: "

    def resolve(self) -> None:
        """Look up the addresses of a host; this may take seconds, so no caller waits for it."""
        if not self._place.socket:
            try:
                self._addresses = socket.getaddrinfo(
                    self._place.host, self._place.port, type=socket.SOCK_STREAM
                )
            except (OSError, UnicodeError):  # the latter for a label that is too long
                self._addresses = []

    def ask(self, method: str, path: str, body: bytes, until: float) -> Answer:
        """Send a request and return its answer.

        If the predictor has closed a kept connection meanwhile, as by its restart, the request is
        sent once more over a new one.

        Args:
            method: Of HTTP.
            path: Path below the prefix of the place.
            body: JSON, or empty.
            until: Time of `time.monotonic` at which to give up.

        Raises:
            UnavailableError: No usable answer came in time.
        """
        head = f"{method} {self._place.prefix}{path} HTTP/1.1\r\n{self._head}{len(body)}\r\n\r\n"
        request = head.encode("ascii") + body
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect(until)
            else:
                try:
                    return self._exchange(connection, request, until)
                except _ClosedError:
                    self.close()  # the other ones are as old
                    connection = self._connect(until)
            return self._exchange(connection, request, until)
        except socket.timeout:
            raise UnavailableError("no answer within the deadline") from None
        except _ClosedError:
            raise UnavailableError("the predictor closed the connection") from None
        except OSError as error:
            at_once = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
            raise UnavailableError(f"{self._place}: {error}", at_once=at_once) from None

    def close(self) -> None:
        """Close what is kept; also for a child process, whose parent goes on using it."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _connect(self, until: float) -> socket.socket:
        if self._place.socket:
            return self._connect_to(socket.AF_UNIX, self._place.socket, until)
        problem = OSError("the host has no address")
        for family, _, _, _, address in self._addresses:
            try:
                return self._connect_to(family, address, until)
            except socket.timeout:
                raise
            except OSError as error:
                problem = error
        raise problem

    def _connect_to(
        self, family: int, address: tuple[Any, ...] | str, until: float
    ) -> socket.socket:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(_remaining(until))
            connection.connect(address)
            if family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection.settimeout(_remaining(until))
                connection = self._tls.wrap_socket(connection, server_hostname=self._place.host)
        except BaseException:
            connection.close()
            raise
        return connection

    def _exchange(self, connection: socket.socket, request: bytes, until: float) -> Answer:
        keep = False
        begun = False

        def receive() -> bytes:
            nonlocal begun
            connection.settimeout(_remaining(until))
            chunk = connection.recv(_CHUNK)
            if not chunk and not begun:
                raise _ClosedError
            begun = True
            return chunk

        try:
            connection.settimeout(_remaining(until))
            connection.sendall(request)
            answer = read_answer(receive)
            keep = answer.headers.get("connection", "").lower() != "close"
        except ConnectionError:
            if begun:
                raise
            raise _ClosedError from None
        finally:
            if keep and len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
            else:
                connection.close()
        return answer


def read_answer(receive: Callable[[], bytes]) -> Answer:
    """Read one answer of HTTP/1.1.

    Args:
        receive: Returns the next bytes, none at the end of the connection.

    Raises:
        UnavailableError: It is not an answer of this protocol, or is incomplete or too large.
    """
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        if len(received) > MOST_HEAD:
            raise UnavailableError(f"the head of the answer exceeds {MOST_HEAD} bytes")
        received += _more(receive)
    status, headers = _read_head(received[:end])
    length = headers.get("content-length", "")
    if not _LENGTH.fullmatch(length) or "transfer-encoding" in headers:
        raise UnavailableError("the answer has no usable Content-Length")
    wanted = int(length)
    if wanted > MOST_BODY:
        raise UnavailableError(f"the answer exceeds {MOST_BODY} bytes")
    body = bytearray(received[end + 4 :])
    while len(body) < wanted:
        body += _more(receive)
    if len(body) > wanted:
        raise UnavailableError("the answer is longer than its Content-Length")
    if (version := headers.get("genesis-protocol", "")) != PROTOCOL:
        speaks = f"speaks protocol {version!r}" if version else "is not a predictor"
        raise UnavailableError(f"the server {speaks}; this client speaks {PROTOCOL!r}")
    return Answer(status, headers, bytes(body))


def _more(receive: Callable[[], bytes]) -> bytes:
    chunk = receive()
    if not chunk:
        raise UnavailableError("the connection ended within an answer")
    return chunk


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise UnavailableError(f"the answer is not HTTP/1.1: {first[:80]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise UnavailableError(f"the answer has a wrong header: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    return int(status[1]), headers


def _remaining(until: float) -> float:
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise socket.timeout
    return seconds


def _tls_context() -> ssl.SSLContext:
    import ssl

    return ssl.create_default_context()
