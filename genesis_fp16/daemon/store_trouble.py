"""What to do when the store fails: log one line, go on, and try again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from genesis_fp16.store import StoreError

REPEAT_SECONDS = 60.0

log = structlog.get_logger()


class StoreTrouble:
    """Tolerates a store that is locked, full or moved away; told at once and then rarely.

    Attributes:
        text: What failed last; empty while the store works.
    """

    def __init__(self) -> None:
        self.text = ""
        self._tell_at = 0.0

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """End the block where the store fails in it; any other error passes."""
        try:
            yield
        except (SQLAlchemyError, StoreError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            self.text = f"the store fails: {cause}"
            now = time.monotonic()
            if now >= self._tell_at:
                self._tell_at = now + REPEAT_SECONDS
                where = "error" if isinstance(error, StoreError) else "disk"
                remedy = f"the daemon tries again by itself; see the {where}"
                log.error("store_failed", error=str(cause), remedy=remedy)
        else:
            if self.text:
                log.info("store_works_again")
            self.text, self._tell_at = "", 0.0
