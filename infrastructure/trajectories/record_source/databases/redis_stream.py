"""The stream of Redis to which Genesis' replay buffer appends its trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.trajectories.record_source.databases.entries import (
    Entry,
    MissingDriverError,
    SourceServerError,
    read_password,
)

_TOGETHER = 200  # entries a request
_SECONDS = 5.0  # to connect, and for an answer
_FIELD = b"data"


class RedisStream:
    """Entries of one stream; each has the record as JSON in its field ``data``.

    Raises:
        MissingDriverError: The extra ``redis`` is not installed.
        MisconfiguredError: *url* has a wrong port or option, or the password cannot be read.
    """

    def __init__(self, url: str, stream: str, password_file: Path | None = None) -> None:
        try:
            import redis
        except ImportError:
            raise MissingDriverError("redis") from None
        self.place = f"the stream {stream!r} of {url}"
        self._stream, self._errors = stream, redis.RedisError
        options: dict[str, Any] = {"socket_timeout": _SECONDS, "socket_connect_timeout": _SECONDS}
        if (password := read_password(password_file)) is not None:
            options["password"] = password
        try:
            self._client = redis.Redis.from_url(url, **options)
            self._client.connection_pool.make_connection()  # it checks the options
        except (ValueError, TypeError) as error:
            raise MisconfiguredError(
                f"source.url {url} cannot be used ({error}): correct it"
            ) from None

    def after(self, cursor: str) -> Iterator[Entry]:
        """See `Entries.after`."""
        last = cursor.encode()
        while True:
            start = b"(" + last if last else b"-"
            with self._asking():
                answer: Any = self._client.xrange(self._stream, min=start, count=_TOGETHER)
            for last, fields in answer:
                yield Entry(cursor=last.decode(), content=fields.get(_FIELD, b""))
            if len(answer) < _TOGETHER:
                return

    def lost_since(self, cursor: str, read: int) -> tuple[int, int]:
        """See `Entries.lost_since`; a Redis before 7 does not count what was added."""
        with self._asking():
            if not self._client.exists(self._stream):
                return 0, 0
            facts: Any = self._client.xinfo_stream(self._stream)
            added = int(facts.get("entries-added", 0))
            before_oldest = added - int(facts["length"])
            oldest: Any = self._client.xrange(self._stream, count=1)
        if not cursor or added < read:  # never read, or deleted since
            return 0, max(0, before_oldest)
        if not oldest or _order(oldest[0][0].decode()) <= _order(cursor):
            return 0, read
        return max(0, before_oldest - read), max(read, before_oldest)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (self._errors, OSError) as error:
            raise SourceServerError(self.place, error) from error


def _order(identity: str) -> tuple[int, int]:
    """Milliseconds and number of an entry's id."""
    milliseconds, _, number = identity.partition("-")
    return int(milliseconds), int(number or 0)
