"""The timetable: queues a run of each agent that is due, and records the due times."""

from __future__ import annotations

import structlog

from genesis_fp16.domain.schedule import MAX_CATCH_UP_RUNS, longest_gap, missed, next_due
from genesis_fp16.store import Store
from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.schedule import Overlap

log = structlog.get_logger()


class Timetable:
    """Queues a run of every agent that is due; *first_seed* seeds an agent's first run.

    Attributes:
        next_runs: Agent to its next due time in Unix seconds; None if it is never due again.
        periods: Agent to the longest gap in seconds between its next due times; NaN if fewer than
            two.
        lags: Agent to how late its last fire was noticed, in seconds.
    """

    def __init__(self, store: Store, first_seed: int) -> None:
        self._store = store
        self._first_seed = first_seed
        self._schedules: dict[str, Schedule] = {}
        self._handled_until: dict[str, float] = {}  # due times
        self._skipped_for: dict[str, str] = {}
        self.next_runs: dict[str, float | None] = {}
        self.periods: dict[str, float] = {}
        self.lags: dict[str, float] = {}

    def add(self, agent: str, schedule: Schedule, now: float) -> None:
        """Add *agent* to the timetable and queue the runs it missed while no daemon ran.

        An agent that never ran is due at once, unless its schedule has ``catch_up`` ``none``.

        Raises:
            ValueError: The schedule's cron expression is malformed.
        """
        next_due(schedule, now)  # raises here, before anything is recorded
        last = self._store.last_due(agent)
        if last is None:
            due = [] if schedule.catch_up == "none" else [now]
        else:
            due = missed(schedule, last, now, schedule.catch_up)
        self._schedules[agent] = schedule
        self._record(agent, due, now, "queue" if schedule.catch_up == "all" else schedule.overlap)

    def tick(self, now: float) -> None:
        """Queue a run of each agent whose next due time has come."""
        for agent, schedule in self._schedules.items():
            due_at = self.next_runs[agent]
            if now < self._handled_until[agent]:  # the clock was set back: count from here
                self._record(agent, [], now, schedule.overlap)
            elif due_at is not None and due_at <= now:
                due = missed(schedule, self._handled_until[agent], now, "latest")
                self.lags[agent] = now - due_at
                self._record(agent, due, now, schedule.overlap)

    def _record(self, agent: str, due: list[float], now: float, overlap: Overlap) -> None:
        unfinished = self._store.unfinished(agent) if due else []
        if unfinished and (overlap == "skip" or len(unfinished) >= MAX_CATCH_UP_RUNS):
            due = []
            if self._skipped_for.get(agent) != unfinished[0].id:
                log.info("schedule_skipped", agent=agent, unfinished_run=unfinished[0].id)
            self._skipped_for[agent] = unfinished[0].id
        elif overlap == "replace":
            for run in unfinished:
                self._store.request_cancel(
                    run.id, actor="schedule", reason="replaced by a newer run"
                )
        self._store.record_due(agent, now, due, first_seed=self._first_seed)
        self._handled_until[agent] = now
        self.next_runs[agent] = next_due(self._schedules[agent], now)
        self.periods[agent] = longest_gap(self._schedules[agent], now)
