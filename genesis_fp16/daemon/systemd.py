"""Tells systemd the daemon's state, and never waits long for it to read."""

from __future__ import annotations

from collections import deque
from types import TracebackType

import sdnotify

LAST_NOTICE_SECONDS = 2.0


class SystemdNotices:
    """The notices of a service of type ``notify``; without ``NOTIFY_SOCKET`` nothing is sent.

    A notice for which the socket has no room is sent by a later call, in order. Use it as a context
    manager: the end of the block closes the socket.
    """

    def __init__(self) -> None:
        self._socket = sdnotify.SystemdNotifier().socket
        self._waiting: deque[bytes] = deque()

    def send(self, notice: str) -> None:
        """Send *notice* without waiting."""
        self._waiting.append(notice.encode())
        self._send_waiting(0.0)

    def send_watchdog(self) -> None:
        """Report that the daemon works, unless earlier notices wait: the next round does it."""
        self._send_waiting(0.0)
        if not self._waiting:
            self.send("WATCHDOG=1")
            self._waiting.clear()

    def send_last(self, notice: str) -> None:
        """Send *notice*; wait `LAST_NOTICE_SECONDS` at most."""
        self._waiting.append(notice.encode())
        self._send_waiting(LAST_NOTICE_SECONDS)

    def __enter__(self) -> SystemdNotices:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    def _send_waiting(self, timeout_seconds: float) -> None:
        while self._waiting:
            if self._socket is not None:
                self._socket.settimeout(timeout_seconds)
                try:
                    self._socket.send(self._waiting[0])
                except (BlockingIOError, TimeoutError):
                    return
                except OSError:  # systemd has restarted or gone: there is nobody to tell
                    pass
            self._waiting.popleft()
