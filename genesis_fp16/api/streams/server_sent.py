"""The form of server-sent events, and how many streams there may be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import StreamingResponse

from genesis_fp16.api.problems import RefusalError

MAX_STREAMS = 24  # of one listener, below its number of connections
STREAM_SECONDS = 600.0  # then the client connects again, and shows again that it may
HEARTBEAT_SECONDS = 15.0  # so that a proxy, or a client, notices a dead connection
RETRY_MILLISECONDS = 2000
HEARTBEAT = b": still there\n\n"


def server_sent(kind: str, data: str, event_id: str = "") -> bytes:
    """One event; *data* is JSON on one line."""
    name = f"id: {event_id}\n" if event_id else ""
    return f"{name}event: {kind}\ndata: {data}\n\n".encode()


class Streams:
    """The streams that are open, by listener."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: Counter[str] = Counter()

    def answer(self, listener: str, events: AsyncGenerator[bytes, None]) -> StreamingResponse:
        """Send *events*, with a heartbeat among them, until they end, or for `STREAM_SECONDS`.

        Raises:
            RefusalError: The listener has `MAX_STREAMS` already.
        """
        if self._open[listener] >= MAX_STREAMS:
            raise RefusalError(
                503,
                f"{MAX_STREAMS} streams of events are open: close one, or ask without a stream",
                {"Retry-After": "10"},
            )
        return StreamingResponse(
            self._send(listener, events),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    async def _send(
        self, listener: str, events: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        end = self._clock() + STREAM_SECONDS
        self._open[listener] += 1
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
            async with aclosing(events):
                async for event in events:
                    yield event
                    if self._clock() >= end:
                        return
        finally:
            self._open[listener] -= 1
