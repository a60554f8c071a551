"""Growth of this process's resident memory."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Self

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"  # see proc_pid_clear_refs(5)


class PeakMemory:
    """Context that notes how far the resident memory grows inside it.

    Attributes:
        mebibytes: Growth, at most; NaN where the kernel does not tell.
    """

    mebibytes = math.nan

    def __enter__(self) -> Self:
        self._before = _kibibytes("VmRSS")
        try:
            (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
        except OSError:
            self._before = math.nan
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.mebibytes = (_kibibytes("VmHWM") - self._before) / 1024


def _kibibytes(key: str) -> float:
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:  # not Linux
        return math.nan
    return next((float(line.split()[1]) for line in lines if line.startswith(key)), math.nan)
