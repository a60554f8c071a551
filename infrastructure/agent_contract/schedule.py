"""When an agent is due: an interval or a cron expression; what to do after downtime."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

CatchUp = Literal["none", "latest", "all"]
Overlap = Literal["skip", "queue", "replace"]

_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_INTERVAL = re.compile(r"every\s+(\d+(?:\.\d+)?)\s*([smhd])")
_NUMERIC_WEEKDAY = re.compile(r"\d")


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """An interval *or* a five-field cron expression, always in UTC.

    Attributes:
        every_seconds: Interval in seconds, anchored to a fixed start, so that restarts of the
            daemon neither shift nor postpone the due times.
        cron: Five fields; weekdays by name (``mon``), because some programs count Monday as 1
            and others Tuesday.
        catch_up: Which due times missed during downtime become runs.
        overlap: What happens at a due time while the agent's previous run is still active.

    Raises:
        ValueError: Both or neither of interval and cron are given; the interval is not between
            one second and 366 days; the cron expression does not have five fields or has a
            numeric weekday; *catch_up* or *overlap* is unknown.
    """

    every_seconds: float | None = None
    cron: str | None = None
    catch_up: CatchUp = "latest"
    overlap: Overlap = "skip"

    def __post_init__(self) -> None:
        if (self.every_seconds is None) == (self.cron is None):
            raise ValueError("a schedule needs exactly one of every_seconds and cron")
        if self.every_seconds is not None and not 1.0 <= self.every_seconds <= 366 * 86400.0:
            raise ValueError(
                f"every_seconds must lie between 1 second and 366 days, got {self.every_seconds}"
            )
        if self.cron is not None:
            fields = self.cron.split()
            if len(fields) != 5:
                raise ValueError(
                    f"cron needs five fields (minute hour day month weekday), got {self.cron!r}"
                )
            if _NUMERIC_WEEKDAY.search(fields[4]):
                raise ValueError(f"name the weekday in cron {self.cron!r}: mon, not 1")
        if self.catch_up not in ("none", "latest", "all"):
            raise ValueError(f"catch_up must be none, latest or all, got {self.catch_up!r}")
        if self.overlap not in ("skip", "queue", "replace"):
            raise ValueError(f"overlap must be skip, queue or replace, got {self.overlap!r}")

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read ``every 30m``, ``every 6h`` or ``cron 0 3 * * mon``.

        Raises:
            ValueError: *text* is neither; the message shows both forms.
        """
        text = text.strip().lower()
        if interval := _INTERVAL.fullmatch(text):
            return cls(every_seconds=float(interval[1]) * _UNIT_SECONDS[interval[2]])
        if text.startswith("cron "):
            return cls(cron=text.removeprefix("cron ").strip())
        raise ValueError(f"write a schedule as 'every 30m' or 'cron 0 3 * * mon', got {text!r}")

    def __str__(self) -> str:
        if self.cron is not None:
            return f"cron {self.cron}"
        seconds = self.every_seconds or 0.0
        for unit, size in reversed(_UNIT_SECONDS.items()):
            if seconds % size == 0:
                return f"every {seconds / size:.0f}{unit}"
        return f"every {seconds:g}s"
