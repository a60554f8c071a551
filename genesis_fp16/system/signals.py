"""Signals as flags that a loop looks at."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """Takes SIGTERM, SIGINT and SIGHUP while entered; in the main thread only.

    Attributes:
        stops: How often SIGTERM or SIGINT came.
        reload: Whether SIGHUP came; the loop sets it back.
    """

    def __init__(self) -> None:
        self.stops = 0
        self.reload = False
        self._before: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> Signals:
        handlers = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self._reload,
        }
        self._before = [(n, signal.signal(n, handler)) for n, handler in handlers.items()]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1

    def _reload(self, _number: int, _frame: FrameType | None) -> None:
        self.reload = True
