"""Paired runs: after every N runs in half precision, the last one is repeated in FP32."""

from __future__ import annotations

import structlog

from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.compared_runs import MIN_HALF_SHARE
from infrastructure.events import Event

log = structlog.get_logger()


class BaselineRuns:
    """Queues the FP32 twin of a run that succeeded; an `EventListener` of the dispatcher.

    A twin trains from the same seed on the same data under the same settings of the agent, always
    in FP32, and publishes nothing. The store keeps its held-out metrics beside those of the run it
    repeats. A job that depends on more, such as the model in use, must read it by
    `RunContext.at_start`, or the twin differs.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._succeeded: list[str] = []

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """Ignore events; see `EventListener`."""

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Remember a run that succeeded."""
        del agent
        if state == RunState.SUCCEEDED and self._settings.baseline_every_runs:
            self._succeeded.append(run_id)

    def tick(self) -> None:
        """Queue the twins that are due; if the store fails, the next call tries again."""
        while self._succeeded:
            run = self._store.run(self._succeeded[0])
            if run is not None and self._is_due(run):
                twin = self._store.enqueue_baseline(run)
                log.info("baseline_queued", agent=run.agent, run_id=twin.id, repeats=run.id)
            self._succeeded.pop(0)

    def _is_due(self, run: Run) -> bool:
        if run.baseline_of is not None or run.half_steps < MIN_HALF_SHARE * max(run.steps, 1):
            return False
        return (
            self._store.compared.runs_since_baseline(run.agent)
            >= self._settings.baseline_every_runs
        )
