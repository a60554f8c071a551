"""When an agent is due. APScheduler's triggers compute due times; its scheduler is not used.

Due times are computed from the last one on record, so a restart, a suspended machine and a changed
clock are one case, and no run is started twice or dropped for being late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from genesis_fp16.domain.local_time import local_moment, next_local_fire, zone_named
from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.schedule import CatchUp, RepeatedHour

ANCHOR = datetime(2026, 1, 1, tzinfo=UTC)  # fixed, so that a restart does not shift intervals
MAX_CATCH_UP_RUNS = 100
DUE_TIMES_OF_A_PERIOD = 30
# The last one spans the 29ths of February around a year without one, such as 2100.
_WINDOWS = tuple(timedelta(days=days) for days in (1 / 24, 1, 31, 366, 3300))


@dataclass(frozen=True, kw_only=True, slots=True)
class DueTime:
    """Last due time of an agent that was handled, in Unix seconds."""

    agent: str
    last_due: float


def next_due(schedule: Schedule, after: float) -> float | None:
    """The first due time later than *after*, both in Unix seconds.

    Returns:
        None if the schedule never fires again, for example on the 30th of February, or if outcomes
        decide.

    Raises:
        ValueError: The cron expression is malformed.
    """
    if schedule.outcomes is not None:
        return None
    trigger = _trigger(schedule)

    def fire_after(seconds: float) -> float | None:
        moment = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=1)
        fire = trigger.get_next_fire_time(None, moment)
        return None if fire is None else fire.timestamp()

    if schedule.timezone in (None, "UTC"):
        return fire_after(after)
    repeated = schedule.repeated_hour or _default_repeated_hour(schedule)
    return next_local_fire(
        fire_after, zone_named(schedule.timezone), repeated, schedule.missing_hour, after
    )


def missed(schedule: Schedule, last_due: float, now: float, catch_up: CatchUp) -> list[float]:
    """Due times after *last_due*, the last one handled, up to *now* that become runs.

    All times are in Unix seconds. A *catch_up* of ``all`` means the newest `MAX_CATCH_UP_RUNS`.
    """
    if catch_up == "none" or last_due > now:
        return []
    keep = 1 if catch_up == "latest" else MAX_CATCH_UP_RUNS
    newest: deque[float] = deque(maxlen=keep)
    for window in _WINDOWS:  # widened until it holds enough due times
        start = max(last_due, now - window.total_seconds())
        newest.extend(_walk(schedule, start, now))
        if len(newest) == keep or start == last_due or window == _WINDOWS[-1]:
            break
        newest.clear()
    return list(newest)


def _default_repeated_hour(schedule: Schedule) -> RepeatedHour:
    """Once, unless the expression is of every hour: then the hour's second occurrence is one."""
    hour = (schedule.cron or "").split()[1]
    return "both" if hour == "*" else "first"


def _walk(schedule: Schedule, after: float, until: float) -> Iterator[float]:
    while (due := next_due(schedule, after)) is not None and due <= until:
        yield due
        after = due


def local_due(schedule: Schedule, due: float | None) -> str | None:
    """The due time *due* in the time zone of *schedule*; None unless it has one but UTC."""
    if due is None or schedule.timezone in (None, "UTC"):
        return None
    return local_moment(due, zone_named(schedule.timezone))


def longest_gap(schedule: Schedule, after: float) -> float:
    """Longest gap in seconds between due times after *after*; enough to span a weekend."""
    if schedule.outcomes is not None:
        return math.nan
    if schedule.cron is None:
        return float(schedule.every_seconds or math.nan)
    due = islice(_walk(schedule, after, math.inf), DUE_TIMES_OF_A_PERIOD)
    return max((later - earlier for earlier, later in pairwise(due)), default=math.nan)


@lru_cache(maxsize=1024)
def _trigger(schedule: Schedule) -> BaseTrigger:
    """The trigger of *schedule*; that of a cron expression fires at local times, labelled UTC.

    APScheduler's own time zones fire for ever at the same moment in an hour that occurs twice
    (apscheduler#1021), and let no policy be chosen.
    """
    if schedule.cron is not None:
        return CronTrigger.from_crontab(schedule.cron, timezone=UTC)
    return IntervalTrigger(seconds=schedule.every_seconds, start_date=ANCHOR, timezone=UTC)
