"""What is told to whoever follows the runs: metrics, guard, log and others."""

from __future__ import annotations

from typing import Protocol

from genesis_fp16.domain.run import RunState
from infrastructure.events import Event


class EventListener(Protocol):
    """Told everything that happens to runs, in order. It must not block."""

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """A worker has reported *event*."""

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """The run is now in *state*."""
