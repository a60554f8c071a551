"""Errors that mean that a disk has no room."""

from __future__ import annotations

import errno
from collections.abc import Iterator

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})  # no space left, quota used up


def find_disk_full(error: BaseException | None) -> OSError | None:
    """The first of *error* and its causes that says that a disk is full; None if none does."""
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            return cause
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
