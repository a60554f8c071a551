"""When agents are due: APScheduler's triggers as the clock, our own tables as the memory.

The triggers are asked in the daemon's loop and no scheduler thread runs: what fell due is
computed from the last due time on record, so a restart, a suspended machine and a clock that
was set are one case, and nothing is fired twice or dropped for being late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import structlog
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from genesis_fp16.settings.settings import AgentSettings
from genesis_fp16.store import Store
from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.schedule import CatchUp, Overlap

ANCHOR = datetime(2026, 1, 1, tzinfo=UTC)  # fixed: a restart moves no interval
MAX_CATCH_UP_RUNS = 100
DUE_TIMES_OF_A_PERIOD = 30
_WINDOWS = (timedelta(hours=1), timedelta(days=1), timedelta(days=31), timedelta(days=1830))

log = structlog.get_logger()


def next_due(schedule: Schedule, after: float) -> float | None:
    """The first due time later than *after*, both in Unix seconds.

    Returns:
        None if the schedule never fires again, such as on the 30th of February.

    Raises:
        ValueError: The cron expression is malformed.
    """
    return _fire_after(_trigger(schedule), after)


def missed(schedule: Schedule, last_due: float, now: float, catch_up: CatchUp) -> list[float]:
    """Due times after *last_due* up to *now* that are to become runs, in Unix seconds.

    Args:
        schedule: When the agent is due.
        last_due: The last due time that was dealt with.
        now: Unix time in seconds.
        catch_up: ``none`` of them, the ``latest``, or ``all`` (the newest
            `MAX_CATCH_UP_RUNS` of them).
    """
    if catch_up == "none" or last_due > now:
        return []
    keep = 1 if catch_up == "latest" else MAX_CATCH_UP_RUNS
    newest: deque[float] = deque(maxlen=keep)
    for window in _WINDOWS:  # widened until it holds enough: years of seconds are not walked
        start = max(last_due, now - window.total_seconds())
        newest.extend(_walk(schedule, start, now))
        if len(newest) == keep or start == last_due:
            break
        newest.clear()
    return list(newest)


def schedule_of(settings: AgentSettings, default: Schedule) -> Schedule:
    """The operator's times, else the agent's own; catch-up and overlap are the agent's."""
    if settings.schedule is None:
        return default
    times = Schedule.parse(settings.schedule)
    return replace(default, every_seconds=times.every_seconds, cron=times.cron)


class Timetable:
    """Queues a run for every agent that is due.

    Args:
        store: Remembers due times and takes the runs.
        first_seed: Seed of the first run of each agent.
    """

    def __init__(self, store: Store, first_seed: int) -> None:
        self._store = store
        self._first_seed = first_seed
        self._schedules: dict[str, Schedule] = {}
        self._dealt_with: dict[str, float] = {}  # due times up to here
        self._next_due: dict[str, float | None] = {}
        self._periods: dict[str, float] = {}
        self._skipped_for: dict[str, str] = {}
        self._lags: dict[str, float] = {}

    def add(self, agent: str, schedule: Schedule, now: float) -> None:
        """Put *agent* on the timetable and queue what it missed while no daemon ran.

        An agent that never ran is due at once, unless its schedule catches up on nothing.

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
            due_at = self._next_due[agent]
            if now < self._dealt_with[agent]:  # the clock was set back: begin anew from here
                self._record(agent, [], now, schedule.overlap)
            elif due_at is not None and due_at <= now:
                due = missed(schedule, self._dealt_with[agent], now, "latest")
                self._lags[agent] = now - due_at
                self._record(agent, due, now, schedule.overlap)

    def next_runs(self) -> dict[str, float | None]:
        """Agent to its next due time in Unix seconds."""
        return dict(self._next_due)

    def period_seconds(self, agent: str) -> float:
        """The longest gap between the agent's next due times; NaN if there are no two."""
        return self._periods[agent]

    def lags(self) -> dict[str, float]:
        """Agent to how late its last fire was noticed, in seconds."""
        return dict(self._lags)

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
        self._dealt_with[agent] = now
        self._next_due[agent] = next_due(self._schedules[agent], now)
        self._periods[agent] = _longest_gap(self._schedules[agent], now)


def _walk(schedule: Schedule, after: float, until: float) -> Iterator[float]:
    trigger = _trigger(schedule)
    while (due := _fire_after(trigger, after)) is not None and due <= until:
        yield due
        after = due


def _longest_gap(schedule: Schedule, after: float) -> float:
    """Over enough due times to cross a weekend or a night."""
    due = islice(_walk(schedule, after, math.inf), DUE_TIMES_OF_A_PERIOD)
    return max((later - earlier for earlier, later in pairwise(due)), default=math.nan)


def _fire_after(trigger: BaseTrigger, after: float) -> float | None:
    moment = trigger.get_next_fire_time(None, _utc(after) + timedelta(microseconds=1))
    return moment.timestamp() if moment is not None else None


def _trigger(schedule: Schedule) -> BaseTrigger:
    if schedule.cron is not None:
        return CronTrigger.from_crontab(schedule.cron, timezone=UTC)
    return IntervalTrigger(seconds=schedule.every_seconds, start_date=ANCHOR, timezone=UTC)


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
