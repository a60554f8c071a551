"""Times and durations as text for people."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(timestamp: float | None) -> str:
    """Unix seconds as UTC, or ``unreadable time`` if the calendar does not reach that far."""
    if timestamp is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (OSError, OverflowError, ValueError):  # beyond the calendar, or NaN
        return "unreadable time"


def duration(seconds: float | None) -> str:
    """Seconds as ``12.3s``, ``45m`` or ``6.7h``."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.1f}h"
