"""Which folder may serve as GENESIS_HOME; a wrong one keeps its files and their modes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from genesis_fp16.store.daemon_status import LOCK_FILE, STATUS_FILE
from genesis_fp16.store.errors import StoreError

_MARKS = frozenset({"genesis.db", LOCK_FILE, STATUS_FILE, "plugins.json", "agents.d"})
_COMMON_NAMES = frozenset(  # of a home, but of other folders, too
    {
        "agents",
        "checks",
        "control.sock",
        "guard",
        "labs",
        "lost+found",
        "preflights",
        "profiles",
        "records",
        "rollbacks.json",
        "runs",
        "store-id",
    }
)
_NAMES_SHOWN = 3


class ForeignHomeError(StoreError):
    """GENESIS_HOME names a folder that holds something else."""

    exit_code = os.EX_CONFIG

    def __init__(self, home: Path, foreign: list[str]) -> None:
        more = len(foreign) - _NAMES_SHOWN
        shown = ", ".join(foreign[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        super().__init__(
            f"GENESIS_HOME {home} is not a home of genesis-fp16: it contains {shown}; set "
            f"GENESIS_HOME to a new or empty folder, or create an empty file {LOCK_FILE} in this "
            "one to make it a home, which is closed to other users"
        )


def refuse_foreign_folder(home: Path) -> None:
    """Refuse a folder with visible files of others that has not been a home before.

    A folder that is missing, or cannot be read, is left to what opens it.

    Raises:
        ForeignHomeError: The folder belongs to something else.
    """
    names: set[str] = set()
    with suppress(OSError):
        names = {path.name for path in home.iterdir() if not path.name.startswith(".")}
    if names & _MARKS:
        return
    if foreign := sorted(names - _COMMON_NAMES):
        raise ForeignHomeError(home, foreign)
