"""Tells the listener the states of runs, each once."""

from __future__ import annotations

from genesis_fp16.domain.listener import EventListener
from genesis_fp16.domain.run import TERMINAL, Run, RunState
from genesis_fp16.store import Store


class RunStates:
    """States of unfinished runs as they were announced, which the store may lag behind.

    Args:
        store: An open store.
        listener: Receives each state once.
    """

    def __init__(self, store: Store, listener: EventListener) -> None:
        self._store, self._listener = store, listener
        self._announced: dict[str, RunState] = {}

    def of(self, run: Run) -> RunState | None:
        """The state of *run* that was announced; None if none was, or a terminal one."""
        return self._announced.get(run.id)

    def announce(self, run: Run, state: RunState) -> None:
        """Announce that *run* is in *state*."""
        if self._announced.get(run.id) is state:
            return
        self._announced[run.id] = state
        if state in TERMINAL:
            del self._announced[run.id]
        self._listener.on_run_state(run.agent, run.id, state)

    def announce_started(self, run: Run) -> None:
        """Announce that *run* goes on, if it was starting."""
        if self._announced.get(run.id) is RunState.STARTING:
            self.announce(run, RunState.RUNNING)

    def fail(self, run: Run, error: str) -> None:
        """Move a *run* without an attempt under way to failed."""
        self._store.move(run.id, RunState.FAILED, error=error)
        self.announce(run, RunState.FAILED)

    def cancel(self, run: Run, reason: str | None) -> None:
        """Move a *run* that waits to cancelled."""
        if self._store.move(run.id, RunState.CANCELLED, error=reason):
            self.announce(run, RunState.CANCELLED)
