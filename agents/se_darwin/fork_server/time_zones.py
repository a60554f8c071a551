"""Time zones of `zoneinfo` in the sandbox, which cannot open the files that describe them."""

from __future__ import annotations

import io
import sys
from pathlib import Path


def keep_time_zones() -> None:
    """Read all time zones now if `zoneinfo` is imported, and let it find them in memory."""
    if "zoneinfo" not in sys.modules:
        return
    import zoneinfo
    from zoneinfo import _common, _tzpath  # where it finds files

    zones: dict[str, bytes] = {}
    for key in zoneinfo.available_timezones():
        path = _tzpath.find_tzfile(key)
        if path is not None:
            zones[key] = Path(path).read_bytes()
        else:  # of the package tzdata
            with _common.load_tzdata(key) as file:
                zones[key] = file.read()

    def load_tzdata(key: str) -> io.BytesIO:
        if key not in zones:
            raise zoneinfo.ZoneInfoNotFoundError(f"No time zone found with key {key}")
        return io.BytesIO(zones[key])

    zoneinfo.reset_tzpath(to=())
    vars(_common).update(load_tzdata=load_tzdata)
