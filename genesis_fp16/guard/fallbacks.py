"""Runs whose workers fell back to FP32 by themselves, at the floor of the loss scale."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from genesis_fp16.domain.attempt import events_path
from genesis_fp16.domain.run import TERMINAL, RunState
from genesis_fp16.store import Store
from infrastructure.events import Event
from infrastructure.events.event import Notice, PrecisionChanged
from infrastructure.events.event_log import read_events


class Fallbacks:
    """Remembers until the end of a run that its worker fell back; an `EventListener`.

    Args:
        store: Store of the unfinished runs. Their event files are read once, since their workers
            may have fallen back under an earlier daemon.
        home: ``GENESIS_HOME``.
    """

    def __init__(self, store: Store, home: Path) -> None:
        self._fell_back_at: dict[str, float] = {}
        self._in_half: set[str] = set()
        for run in store.unfinished():
            for attempt in store.attempts(run.id):
                with suppress(OSError):  # the dispatcher reports a file that cannot be read
                    for event in read_events(events_path(home, attempt)):
                        self.on_event(run.agent, run.id, event)

    def fell_back_at(self, run_id: str) -> float | None:
        """Unix time of the last fallback of the run's workers; None if none fell back."""
        return self._fell_back_at.get(run_id)

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """Record a fallback that a worker acknowledged, or for which it must be restarted.

        The same acknowledgement answers a daemon that asked for FP32 with this reason. It counts
        as another fallback only if the run was in half precision before.
        """
        del agent
        match event:
            case PrecisionChanged(state=state):
                known = run_id in self._fell_back_at and run_id not in self._in_half
                if state.reason == "floor_policy" and not known:
                    self._fell_back_at[run_id] = event.time
                if state.effective == "fp32":
                    self._in_half.discard(run_id)
                else:
                    self._in_half.add(run_id)
            case Notice(event="precision_needs_restart", fields={"reason": "floor_policy"}):
                self._fell_back_at[run_id] = event.time
            case _:
                pass

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Forget a run that has ended."""
        del agent
        if state in TERMINAL:
            self._fell_back_at.pop(run_id, None)
            self._in_half.discard(run_id)
