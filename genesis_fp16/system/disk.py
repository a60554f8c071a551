"""Whether a disk has no room, and errors that mean that."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})  # no space left, quota used up
_FULL_DISK_BYTES = 1 << 20  # a disk with fewer free bytes counts as full


def find_disk_full(error: BaseException | None) -> OSError | None:
    """The first of *error* and its causes that says that a disk is full; None if none does."""
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            return cause
    return None


def is_full(folder: Path) -> bool:
    """Whether the disk of *folder* has next to no room; False if that cannot be found out."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL_DISK_BYTES


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
