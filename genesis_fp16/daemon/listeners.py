"""Several listeners as one: the guard, the metrics, the run log and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from genesis_fp16.domain.listener import EventListener
from genesis_fp16.domain.run import RunState
from infrastructure.events import Event

log = structlog.get_logger()


class Listeners:
    """Passes everything on to each of several listeners, even if another one raises an error.

    Each error is logged once: a listener that fails at one event is likely to fail at the next.

    Args:
        listeners: Listeners, in the order in which they are called.
    """

    def __init__(self, listeners: Sequence[EventListener]) -> None:
        self._listeners = tuple(listeners)
        self._logged: set[str] = set()

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """See `EventListener`."""
        self._notify(lambda listener: listener.on_event(agent, run_id, event))

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """See `EventListener`."""
        self._notify(lambda listener: listener.on_run_state(agent, run_id, state))

    def _notify(self, call: Callable[[EventListener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception as error:  # an error in a listener must not fail a run
                failure = f"{type(listener).__name__}: {error!r}"
                if failure not in self._logged:
                    self._logged.add(failure)
                    log.exception("listener_failed", failure=failure)
