"""The guard for models, and what it needs of the daemon: versions, audit trail, runs, metrics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import structlog
from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.daemon import models
from genesis_fp16.domain.guard import GUARD
from genesis_fp16.domain.predictor import AgentFigures
from genesis_fp16.guard.models import ModelGuard
from genesis_fp16.guard.models.model_guard import TakenBack
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.model_versions import ModelVersionError
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, StoreError
from genesis_fp16.store.decisions import Change

RETRY_SECONDS = 5.0
ACTION = "models taken back"

log = structlog.get_logger()


class GuardedModels:
    """Receives what the predictor reports, and obeys the guard.

    A version is taken back at once; what was done is recorded, and a training asked for, when the
    store works.

    Args:
        settings: Settings in force; assign `settings` after a reload.
        may_run: Whether a run of an agent may be queued now.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        may_run: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._store, self._metrics = settings, store, metrics
        self._may_run, self._clock = may_run, clock
        self._retry_at: dict[str, float] = {}
        self._unrecorded: deque[Change] = deque()
        self._to_train: deque[Change] = deque()
        home = settings.home.absolute()
        on_reading, kept = metrics.show_model, store.overrides.kept_models
        self._guard = ModelGuard(home, settings, self._take_back, on_reading, kept, clock)

    def on_figures(self, agent: str, figures: AgentFigures) -> None:
        """Count what a predictor has reported, and watch what it has compared."""
        self._metrics.on_predictions(agent, figures)
        if figures.judged is not None:
            self._guard.add(agent, figures.judged)

    def tick(self, settings: Settings) -> None:
        """Act, record and ask for trainings under *settings*; called in every round."""
        self._settings = self._guard.settings = settings
        try:
            self._guard.tick()
            while self._unrecorded:
                self._store.record_change(self._unrecorded[0])
                self._to_train.append(self._unrecorded.popleft())
            while self._to_train:
                self._ask_for_training(self._to_train[0])
                self._to_train.popleft()
        except (SQLAlchemyError, StoreError):
            pass  # the loop reports a store that fails; the next round tries again

    def close(self) -> None:
        """Write what the guard has seen."""
        self._guard.close()

    def _take_back(self, failed: TakenBack) -> bool:
        agent, now = failed.agent, self._clock()
        if now < self._retry_at.get(agent, 0.0):
            return False
        try:
            target = models.take_back(self._settings, agent, failed.version, failed.never_to)
        except (ModelVersionError, OSError) as error:
            self._retry_at[agent] = now + RETRY_SECONDS
            log.warning("model_not_taken_back", agent=agent, error=str(error))
            return False
        self._metrics.model_taken_back(agent)
        log.warning(
            "model_taken_back",
            agent=agent,
            version=failed.version,
            now=target or "none",
            reason=failed.explanation,
            remedy=f"genesis-fp16 models rollback {agent} --to {failed.version} puts it back, and "
            f"models keep {agent} lets the guard leave it alone",
        )
        details = {"from": failed.version, "to": target, **failed.reading.model_dump()}
        self._unrecorded.append(Change(GUARD, ACTION, agent, failed.explanation, details))
        return True

    def _ask_for_training(self, change: Change) -> None:
        agent = change.subject
        if not self._may_run(agent):
            log.warning("training_not_queued", agent=agent, reason="it is paused or not ready")
            return
        run = self._store.enqueue(
            agent, first_seed=self._settings.seed, actor=GUARD, reason=change.reason
        )
        log.info("training_queued", agent=agent, run_id=run.id, reason=change.reason)
