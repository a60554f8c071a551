"""What is tried again while the store does not answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from genesis_fp16.system.object_store import ObjectStoreError

STORE_SECONDS = 600.0  # for a store that does not answer, before the training and after it
_WAIT_SECONDS = 1.0

T = TypeVar("T")


def retried(step: Callable[[], T]) -> T:
    """Result of *step*, which is repeated for `STORE_SECONDS` while the store fails.

    Raises:
        ObjectStoreError: It failed for that long.
    """
    give_up = time.monotonic() + STORE_SECONDS
    while True:
        try:
            return step()
        except ObjectStoreError as error:
            if time.monotonic() >= give_up:
                raise
            say(f"the store cannot be used now: {error}")
            time.sleep(_WAIT_SECONDS)


def say(text: str) -> None:
    """Write *text* to the job's log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
