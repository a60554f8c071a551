"""Numbers, times and states as the page's templates print them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from markupsafe import Markup

_JOINT = re.compile(r"(?<=\w)(__?|/|=)(?=\w)")
_TONES = {
    "good": ("succeeded", "ready", "watching"),
    "bad": ("failed", "crashed", "timed_out", "quarantined"),
    "warn": ("tripped", "probation", "no_data"),
    "busy": ("starting", "running", "stopping"),
    "wait": ("queued", "waiting", "pending"),
    "off": ("cancelled", "disabled", "removed", "paused"),
}
_TONE_OF = {state: tone for tone, states in _TONES.items() for state in states}
_UNITS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def tone(state: str) -> str:
    """Class of the symbol and the colour beside the word *state*."""
    return _TONE_OF.get(state, "off")


def iso(at: float) -> str:
    """Unix seconds as ``2026-11-22T03:14:00Z``; empty if the calendar does not reach that far."""
    moment = _moment(at)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else ""


def clock(at: float | None) -> str:
    """Unix seconds as ``2026-11-22 03:14:00``, in UTC."""
    if at is None:
        return ""
    moment = _moment(at)
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else "unreadable time"


def relative(at: float, now: float) -> str:
    """Unix seconds as ``4 minutes ago`` or ``in 2 hours``; both in Unix seconds."""
    if _moment(at) is None:
        return "unreadable time"
    distance = abs(at - now)
    for seconds, unit in _UNITS:
        if distance >= seconds:
            number = int(distance // seconds)
            text = f"{number} {unit}{'' if number == 1 else 's'}"
            return f"{text} ago" if at < now else f"in {text}"
    return "now"


def count(number: int) -> str:
    """A whole number with thin spaces between its thousands."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def number(value: object) -> str:
    """A number with four significant digits; ``not finite`` for null, which stands for that."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not finite" if value is None else str(value)
    if not math.isfinite(value):
        return "not finite"
    return count(value) if isinstance(value, int) else f"{value:.4g}"


def power(scale: float) -> str:
    """A loss scale as a power of two if it is one."""
    if not (math.isfinite(scale) and scale > 0):
        return "not finite"
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:.4g}"


def size(number_of_bytes: int) -> str:
    """Bytes in the unit that fits."""
    value = float(number_of_bytes)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def words(text: str) -> Markup:
    """*text*, whose long names break after an underscore or a slash and not within a word."""
    return Markup("<wbr>").join(_JOINT.sub(r"\1\0", text).split("\0"))  # it escapes the parts


def _moment(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OSError, OverflowError, ValueError):  # beyond the calendar, or NaN
        return None
