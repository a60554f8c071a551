"""Signals as flags that a loop polls."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Signals:
    """Records SIGTERM, SIGINT and SIGHUP while entered; in the main thread only.

    Attributes:
        stop_count: Number of SIGTERM and SIGINT received.
        reload_requested: Whether SIGHUP was received; the loop resets it.
    """

    def __init__(self) -> None:
        self.stop_count = 0
        self.reload_requested = False
        self._before: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> Signals:
        handlers = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self._reload,
        }
        self._before = [(n, signal.signal(n, handler)) for n, handler in handlers.items()]
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_count += 1

    def _reload(self, _number: int, _frame: FrameType | None) -> None:
        self.reload_requested = True
