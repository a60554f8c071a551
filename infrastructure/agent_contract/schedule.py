"""When an agent is due: an interval or a cron expression; what to do after downtime."""

from __future__ import annotations

import re
import zoneinfo
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Literal, get_args

CatchUp = Literal["none", "latest", "all"]
Overlap = Literal["skip", "queue", "replace"]
RepeatedHour = Literal["first", "second", "both"]
MissingHour = Literal["skip", "shift"]
_CHOICES: dict[str, tuple[str, ...]] = {
    "repeated_hour": get_args(RepeatedHour),
    "missing_hour": get_args(MissingHour),
    "catch_up": get_args(CatchUp),
    "overlap": get_args(Overlap),
}

_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_INTERVAL = re.compile(r"every\s+(\d+(?:\.\d+)?)\s*([smhd])")
_OUTCOMES = re.compile(
    r"every\s+(\d+)\s+outcomes?(?:,?\s+at\s+most\s+"
    r"(?:(?P<often>hourly|daily)|every\s+(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[smhd])))?"
)
_OFTEN_SECONDS = {"hourly": 3600.0, "daily": 86400.0}
_SHORTEST_GAP_SECONDS = 60.0  # between runs that data make due, unless the schedule says another
_MOST_OUTCOMES = 10**9
_NUMERIC_WEEKDAY = re.compile(r"\d")


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """An interval, a five-field cron expression, in UTC unless it names a time zone, or outcomes.

    Attributes:
        every_seconds: Interval in seconds, anchored to a fixed start, so that restarts of the
            daemon neither shift nor postpone the due times. With *outcomes*, the shortest time
            between two runs.
        outcomes: Number of outcomes and transitions, reported to the predictor and not yet taken
            in by a run, that makes the agent due; None for a schedule by time alone.
        cron: Five fields; weekdays by name (``mon``), because some programs count Monday as 1
            and others Tuesday.
        timezone: Name of the cron expression's time zone, such as ``Europe/Helsinki``; None means
            the operator's ``GENESIS_TIMEZONE``, which is UTC unless it is set.
        repeated_hour: When a local time that occurs twice, as clocks are set back, is due. None
            means ``first``, but ``both`` if the expression's hour is ``*``.
        missing_hour: Whether a local time that clocks skip as they are set forward is due later by
            the length of the gap (``shift``, 02:30 at 03:30) or not at all.
        catch_up: Which due times missed during downtime become runs.
        overlap: What happens at a due time while the agent's previous run is still active.

    Raises:
        ValueError: Both or neither of interval and cron are given; the interval is not between
            one second and 366 days; the cron expression does not have five fields or has a
            numeric weekday; the time zone is unknown or that of an interval; another choice is
            unknown.
    """

    every_seconds: float | None = None
    outcomes: int | None = None
    cron: str | None = None
    timezone: str | None = None
    repeated_hour: RepeatedHour | None = None
    missing_hour: MissingHour = "shift"
    catch_up: CatchUp = "latest"
    overlap: Overlap = "skip"

    def __post_init__(self) -> None:
        self._check_times()
        if self.timezone is not None:
            if self.cron is None:
                raise ValueError("only a cron expression has a time zone; an interval needs none")
            check_timezone(self.timezone)
        for name, choices in _CHOICES.items():
            value, optional = getattr(self, name), name == "repeated_hour"
            if value not in choices and not (optional and value is None):
                known = f"{', '.join(choices[:-1])} or {choices[-1]}"
                raise ValueError(f"{name} must be {known}, got {value!r}")

    def _check_times(self) -> None:
        if (self.every_seconds is None) == (self.cron is None):
            raise ValueError("a schedule needs exactly one of every_seconds and cron")
        if self.every_seconds is not None and not 1.0 <= self.every_seconds <= 366 * 86400.0:
            raise ValueError(
                f"every_seconds must lie between 1 second and 366 days, got {self.every_seconds}"
            )
        if self.outcomes is not None:
            if self.every_seconds is None:
                raise ValueError("outcomes need every_seconds, the shortest time between two runs")
            if not 1 <= self.outcomes <= _MOST_OUTCOMES:
                raise ValueError(f"outcomes must lie between 1 and 10^9, got {self.outcomes}")
        if self.cron is not None:
            fields = self.cron.split()
            if len(fields) != 5:
                raise ValueError(
                    f"cron needs five fields (minute hour day month weekday), got {self.cron!r}"
                )
            if _NUMERIC_WEEKDAY.search(fields[4]):
                raise ValueError(f"name the weekday in cron {self.cron!r}: mon, not 1")

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read one of the forms below.

        ``every 30m``; ``cron 0 3 * * mon``, with a time zone or without; ``every 500 outcomes``,
        at most once a minute; ``every 500 outcomes, at most every 1h`` (or ``hourly``, ``daily``).

        Raises:
            ValueError: *text* is none of them; the message shows the forms.
        """
        text = text.strip()
        if interval := _INTERVAL.fullmatch(text.lower()):
            return cls(every_seconds=float(interval[1]) * _UNIT_SECONDS[interval[2]])
        if by_data := _OUTCOMES.fullmatch(text.lower()):
            gap = _OFTEN_SECONDS.get(by_data["often"] or "", _SHORTEST_GAP_SECONDS)
            if by_data["count"]:
                gap = float(by_data["count"]) * _UNIT_SECONDS[by_data["unit"]]
            return cls(every_seconds=gap, outcomes=int(by_data[1]))
        if text.lower().startswith("cron "):
            words = text.split()[1:]
            timezone = words.pop() if len(words) == 6 else None
            return cls(cron=" ".join(words).lower(), timezone=timezone)
        raise ValueError(
            "write a schedule as 'every 30m', 'cron 0 3 * * mon' or 'every 500 outcomes, at most "
            f"every 1h', got {text!r}"
        )

    def __str__(self) -> str:
        if self.cron is not None:
            return f"cron {self.cron}" + (f" {self.timezone}" if self.timezone else "")
        interval = f"every {_shown(self.every_seconds or 0.0)}"
        if self.outcomes is None:
            return interval
        return f"every {self.outcomes} outcomes, at most {interval}"


def _shown(seconds: float) -> str:
    for unit, size in reversed(_UNIT_SECONDS.items()):
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def check_timezone(name: str) -> None:
    """Check that *name* is a time zone of the tz database.

    Raises:
        ValueError: It is not, or this machine has no time zone data.
    """
    if name == "UTC":  # which needs no data
        return
    known = _timezones()
    if not known:
        raise ValueError(
            f"this machine has no time zone data to look up {name!r}: pip install tzdata"
        )
    if name not in known:
        folded = {zone.lower(): zone for zone in known}
        near = get_close_matches(name.lower(), folded, n=1)
        meant = f"; did you mean {folded[near[0]]}?" if near else ""
        raise ValueError(f"{name!r} is not a time zone such as Europe/Helsinki{meant}")


@lru_cache(maxsize=1)
def _timezones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())
