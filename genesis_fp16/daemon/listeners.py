"""Who is told what happens to runs: the guard, the metrics, the narrator and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from genesis_fp16.domain.listener import EventListener
from genesis_fp16.domain.run import RunState
from infrastructure.events import Event

log = structlog.get_logger()


class Listeners:
    """Passes everything on to each of several; an error of one costs nothing else.

    It is logged when it is new: what fails at one event is likely to fail at the next.

    Args:
        listeners: Those to tell.
    """

    def __init__(self, listeners: Sequence[EventListener]) -> None:
        self._listeners = tuple(listeners)
        self._logged: set[str] = set()

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """See `EventListener`."""
        self._tell(lambda listener: listener.on_event(agent, run_id, event))

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """See `EventListener`."""
        self._tell(lambda listener: listener.on_run_state(agent, run_id, state))

    def _tell(self, message: Callable[[EventListener], None]) -> None:
        for listener in self._listeners:
            try:
                message(listener)
            except Exception as error:  # a listener shows things: it must not cost a run
                failure = f"{type(listener).__name__}: {error!r}"
                if failure not in self._logged:
                    self._logged.add(failure)
                    log.exception("listener_failed", failure=failure)
