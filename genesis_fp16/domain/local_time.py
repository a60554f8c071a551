"""Due times in a time zone: which moments a local time is, and in which order they come."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from infrastructure.agent_contract.schedule import MissingHour, RepeatedHour

# No zone has changed its offset by more than 24 hours at once since 1970: Samoa and Kiribati, which
# crossed the date line.
_WIDEST_CHANGE = 26 * 3600.0
_MINUTE = 60.0  # cron's resolution
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def next_local_fire(
    fire_after: Callable[[float], float | None],
    zone: tzinfo,
    repeated: RepeatedHour,
    missing: MissingHour,
    after: float,
) -> float | None:
    """The first moment after *after* that is due in *zone*, in Unix seconds.

    Local times are walked in their own order, in which no clock changes, and each is turned into
    the moments that it is. Only around a change of the offset does one later local time come at an
    earlier moment.

    Args:
        fire_after: The next local time that a trigger fires at; local times are Unix seconds as
            if they were UTC. None if it never fires again.
        zone: Time zone.
        repeated: Which occurrences of a local time that occurs twice are due.
        missing: Whether a local time that never occurs is due later or not at all.
        after: Unix seconds.
    """
    local = after + min(_offsets_around(zone, after))
    earliest: float | None = None
    while True:
        if earliest is not None:
            least_next = local + _MINUTE - max(_offsets_around(zone, earliest))
            if least_next >= earliest:
                return earliest
        fire = fire_after(local)
        if fire is None:
            return earliest
        local = fire
        for moment in _moments(local, zone, repeated, missing):
            if moment > after:
                earliest = min(moment, earliest if earliest is not None else math.inf)


def zone_named(name: str | None) -> tzinfo:
    """The time zone *name*; UTC, also for None, needs no data of the machine."""
    return UTC if name in (None, "UTC") else ZoneInfo(name or "")


def local_moment(seconds: float, zone: tzinfo) -> str:
    """The Unix time *seconds* in *zone*, with its offset: ``2026-11-01 01:30 EET (+02:00)``."""
    moment = datetime.fromtimestamp(seconds, zone)
    offset = moment.strftime("%z")
    name = moment.tzname() or ""
    shown = "" if name[:1] in "+-" or not name else f"{name} "
    return f"{moment:%Y-%m-%d %H:%M} {shown}({offset[:3]}:{offset[3:5]})"


def day_around(seconds: float, zone: tzinfo) -> tuple[float, float]:
    """Begin and end, in Unix seconds, of the day in *zone* that the Unix time *seconds* is in."""
    midnight = datetime.fromtimestamp(seconds, zone).replace(
        hour=0, minute=0, second=0, microsecond=0, fold=0
    )
    return midnight.timestamp(), (midnight + timedelta(days=1)).timestamp()


def _moments(
    local: float, zone: tzinfo, repeated: RepeatedHour, missing: MissingHour
) -> tuple[float, ...]:
    """The moments, in Unix seconds, at which *local* is due."""
    wall = (_EPOCH + timedelta(seconds=local)).replace(tzinfo=zone)
    # By PEP 495 fold 0 takes the offset before a change, fold 1 the one after it.
    first, second = wall.timestamp(), wall.replace(fold=1).timestamp()
    if first == second:
        return (first,)
    if first > second:  # clocks have skipped it; first lies behind the gap by as much as it does
        return (first,) if missing == "shift" else ()
    return {"first": (first,), "second": (second,), "both": (first, second)}[repeated]


def _offsets_around(zone: tzinfo, moment: float) -> set[float]:
    """Offsets from UTC, in seconds, in force around *moment*."""
    moments = (moment - _WIDEST_CHANGE, moment, moment + _WIDEST_CHANGE)
    return {_offset(zone, at) for at in moments}


def _offset(zone: tzinfo, moment: float) -> float:
    offset = datetime.fromtimestamp(moment, zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()
