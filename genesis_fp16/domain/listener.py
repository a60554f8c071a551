"""The interface of metrics, guard, log and others that follow the runs."""

from __future__ import annotations

from typing import Protocol

from genesis_fp16.domain.run import RunState
from infrastructure.events import Event


class EventListener(Protocol):
    """Receives all events and states of runs, in order. It must not block."""

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """Receive an *event* that a worker has reported."""

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Receive the run's new *state*."""
