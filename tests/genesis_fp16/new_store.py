"""New databases for tests: the first in SQLite is migrated, the others are copies of its file."""

import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store


def new_store(settings: Settings, clock: Callable[[], float] = time.time) -> Store:
    """Open a store that has no database yet."""
    if settings.database_url is None:
        path = settings.home / "genesis.db"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(_migrated())
    return Store.open(settings, clock)


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as home:
        Store.open(Settings(home=Path(home))).close()
        return Path(home, "genesis.db").read_bytes()
