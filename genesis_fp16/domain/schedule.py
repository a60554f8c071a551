"""When an agent is due: APScheduler's triggers as a clock that is asked, never started.

What fell due is computed from the last due time on record, so a restart, a suspended machine and a
clock that was set are one case, and nothing is fired twice or dropped for being late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.schedule import CatchUp

ANCHOR = datetime(2026, 1, 1, tzinfo=UTC)  # fixed: a restart moves no interval
MAX_CATCH_UP_RUNS = 100
DUE_TIMES_OF_A_PERIOD = 30
_WINDOWS = (timedelta(hours=1), timedelta(days=1), timedelta(days=31), timedelta(days=1830))


@dataclass(frozen=True, kw_only=True, slots=True)
class DueTime:
    """Up to when the due times of one agent were dealt with, in Unix seconds."""

    agent: str
    last_due: float


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


def effective_schedule(operators: str | None, default: Schedule) -> Schedule:
    """The operator's times, else the agent's own; catch-up and overlap are the agent's."""
    if operators is None:
        return default
    times = Schedule.parse(operators)
    return replace(default, every_seconds=times.every_seconds, cron=times.cron)


def _walk(schedule: Schedule, after: float, until: float) -> Iterator[float]:
    trigger = _trigger(schedule)
    while (due := _fire_after(trigger, after)) is not None and due <= until:
        yield due
        after = due


def longest_gap(schedule: Schedule, after: float) -> float:
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
