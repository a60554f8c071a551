"""Whether the file at a path is still the one that was opened: a path can be given another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from sqlalchemy.engine import URL

from genesis_fp16.store.failure import StoreError, shown

Identity: TypeAlias = tuple[int, int]  # device and inode


def identity(path: str | os.PathLike[str]) -> Identity | None:
    """Of the file at *path*; None if there is none that can be looked at."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class OpenedFile:
    """The file behind the URL of a database that has just been opened; of a server there is none.

    Args:
        url: Of the database.
    """

    def __init__(self, url: URL) -> None:
        self._url = url
        self._path = url.database if url.get_backend_name() == "sqlite" else None
        self._identity = identity(self._path) if self._path else None

    def verify(self) -> None:
        """Make sure that others who open the database find the same file.

        Raises:
            StoreError: It was moved, removed or replaced: they would speak to another.
        """
        if self._path and identity(self._path) != self._identity:
            raise StoreError(
                f"database {shown(self._url)} was moved, removed or replaced while it was open: "
                "what commands say now, such as a rollback, is not heard; move it back, or restart"
            )
