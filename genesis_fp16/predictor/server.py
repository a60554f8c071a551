"""Serves the application on open sockets; agents keep their connections for long."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

import uvicorn

from genesis_fp16.predictor.app import App
from genesis_fp16.system.bounded_connection import BoundedConnection

KEEP_ALIVE_SECONDS = 600
GRACE_SECONDS = 2
MAX_HEAD_BYTES = 1 << 15


class _AgentConnection(BoundedConnection):
    most_connections = 512
    head_seconds = float(KEEP_ALIVE_SECONDS)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _WholeAnswers(transport)))


class _WholeAnswers:
    """A transport that sends what is written in one turn of the event loop by one system call.

    uvicorn writes the head of an answer and its body one after the other. Sent apart, the head
    wakes a client that then waits for the body.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> object:
        return cast(object, getattr(self._transport, name))

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        written, self._written = self._written, []
        if written and not self._transport.is_closing():
            self._transport.write(b"".join(written))


def serve(
    app: App, listeners: list[socket.socket], begin: Callable[[uvicorn.Server], None]
) -> None:
    """Serve *app* on *listeners* until SIGTERM, SIGINT, or `uvicorn.Server.should_exit`.

    Args:
        begin: Called in the event loop, before the first request.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # not each line that is not HTTP
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http=_AgentConnection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        begin(server)
        await server.serve(listeners)

    asyncio.run(run())
