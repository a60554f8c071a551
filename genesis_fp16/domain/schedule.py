"""When an agent is due. APScheduler's triggers compute due times; its scheduler is not used.

Due times are computed from the last one on record, so a restart, a suspended machine and a changed
clock are one case, and no run is started twice or dropped for being late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.schedule import CatchUp, Overlap

ANCHOR = datetime(2026, 1, 1, tzinfo=UTC)  # fixed, so that a restart does not shift intervals
MAX_CATCH_UP_RUNS = 100
DUE_TIMES_OF_A_PERIOD = 30
_WINDOWS = (timedelta(hours=1), timedelta(days=1), timedelta(days=31), timedelta(days=1830))


@dataclass(frozen=True, kw_only=True, slots=True)
class DueTime:
    """Last due time of an agent that was handled, in Unix seconds."""

    agent: str
    last_due: float


def next_due(schedule: Schedule, after: float) -> float | None:
    """The first due time later than *after*, both in Unix seconds.

    Returns:
        None if the schedule never fires again, for example on the 30th of February.

    Raises:
        ValueError: The cron expression is malformed.
    """
    return _fire_after(_trigger(schedule), after)


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
        if len(newest) == keep or start == last_due:
            break
        newest.clear()
    return list(newest)


def effective_schedule(
    default: Schedule,
    times: str | None = None,
    catch_up: CatchUp | None = None,
    overlap: Overlap | None = None,
) -> Schedule:
    """The agent's schedule, *default*, with what the operator has set instead."""
    chosen = default if times is None else Schedule.parse(times)
    return replace(
        chosen,
        catch_up=catch_up or default.catch_up,
        overlap=overlap or default.overlap,
    )


def _walk(schedule: Schedule, after: float, until: float) -> Iterator[float]:
    trigger = _trigger(schedule)
    while (due := _fire_after(trigger, after)) is not None and due <= until:
        yield due
        after = due


def longest_gap(schedule: Schedule, after: float) -> float:
    """Longest gap in seconds between due times after *after*; enough to span a weekend."""
    if schedule.cron is None:
        return float(schedule.every_seconds or math.nan)
    due = islice(_walk(schedule, after, math.inf), DUE_TIMES_OF_A_PERIOD)
    return max((later - earlier for earlier, later in pairwise(due)), default=math.nan)


def _fire_after(trigger: BaseTrigger, after: float) -> float | None:
    moment = trigger.get_next_fire_time(None, _utc(after) + timedelta(microseconds=1))
    return moment.timestamp() if moment is not None else None


@lru_cache(maxsize=1024)
def _trigger(schedule: Schedule) -> BaseTrigger:
    if schedule.cron is not None:
        return CronTrigger.from_crontab(schedule.cron, timezone=UTC)
    return IntervalTrigger(seconds=schedule.every_seconds, start_date=ANCHOR, timezone=UTC)


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
