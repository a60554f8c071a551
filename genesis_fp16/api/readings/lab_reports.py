"""Reports of the precision lab below the home: ``reports/NAME/report.html``."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

FOLDER = "reports"
_FILE = "report.html"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_LARGEST = 32 << 20  # bytes; a report of every section has one or two MiB
_MOST = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class LabReport:
    """A report; its *name* is its folder's."""

    name: str
    written_at: float
    bytes: int


def find(home: Path) -> list[LabReport]:
    """The reports in *home*, newest first; what is not a plain file in a plain folder is not one.

    At most 500 folders are looked at.
    """
    reports = []
    try:
        with os.scandir(home / FOLDER) as folders:
            plain = [folder.name for folder in folders if folder.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    for name in sorted(filter(NAME.fullmatch, plain))[:_MOST]:
        try:
            state = (home / FOLDER / name / _FILE).lstat()
        except OSError:
            continue
        if _is_report(state):
            reports.append(LabReport(name=name, written_at=state.st_mtime, bytes=state.st_size))
    return sorted(reports, key=lambda report: report.written_at, reverse=True)


def read(home: Path, name: str) -> bytes | None:
    """Content of the report *name*; None if there is none, or it is too large to be one."""
    if not NAME.fullmatch(name):
        return None
    folder = home / FOLDER / name
    try:
        if folder.is_symlink():
            return None
        with open(folder / _FILE, "rb", opener=_open_plainly) as opened:
            state = os.fstat(opened.fileno())
            if not _is_report(state):
                return None
            return opened.read(_LARGEST)
    except OSError:
        return None


def _is_report(state: os.stat_result) -> bool:
    return stat.S_ISREG(state.st_mode) and state.st_size <= _LARGEST


def _open_plainly(path: str, flags: int) -> int:
    """Follow no link out of the home, and do not wait for a pipe's writer."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
