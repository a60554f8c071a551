"""A connection of an HTTP server that is bounded in time and number.

Each listener has a number of connections of its own: a crowd on TCP leaves the Unix socket free.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import defaultdict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of the process at the other end
_open: defaultdict[str, dict[BoundedConnection, None]] = defaultdict(dict)  # by listener


class BoundedConnection(H11Protocol):
    """A connection that is closed if it is slow, and makes room when there are too many.

    ``scope["state"]`` names the ``listener``, ``unix`` or ``tcp``, and the ``peer_uid`` behind a
    Unix socket.

    Attributes:
        most_connections: Largest number of connections of one listener.
        head_seconds: Time in which a request's head must arrive.
        body_seconds: Time in which its body must arrive after that.
        stall_seconds: Time in which a client must read something of what it was sent.
    """

    most_connections = 64
    head_seconds = 10.0
    body_seconds = 60.0
    stall_seconds = 20.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; the longest idle connection of the listener may have to go."""
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        self._listener = "unix" if connected.family == socket.AF_UNIX else "tcp"
        self.app_state = {**self.app_state, **_peer(connected, self._listener)}
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        connections = _open[self._listener]
        connections[self] = None
        self._watched: object = None  # request whose body has a deadline
        self._watch()
        if len(connections) > self.most_connections:
            idle = (connection for connection in connections if connection._awaits_client)
            next(idle, self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        _open[self._listener].pop(self, None)
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what the client has sent."""
        super().data_received(data)
        if self._answering:
            self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request of the connection."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._watch()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._stall = self.loop.call_later(self.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    @property
    def _answering(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _awaits_client(self) -> bool:
        """Whether the client has something to send: a request, or the rest of one's body."""
        return not self._answering or self.cycle.more_body

    def _watch(self) -> None:
        """Set the deadline of what the client has to send now, if there is anything."""
        if not self._awaits_client:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif not self._answering:
            self._await(self.head_seconds)
        elif self._watched is not self.cycle:
            self._watched = self.cycle
            self._await(self.body_seconds)

    def _await(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self._awaits_client and self.conn.our_state is not h11.ERROR:
            self.transport.abort()


def _peer(connected: socket.socket, listener: str) -> dict[str, Any]:
    if listener != "unix":
        return {"listener": listener}
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return {"listener": listener, "peer_uid": _CREDENTIALS.unpack(packed)[1]}
