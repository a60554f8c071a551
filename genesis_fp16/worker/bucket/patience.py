"""What is tried again while the bucket does not answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from genesis_fp16.system.bucket import BucketError

BUCKET_SECONDS = 600.0  # for a bucket that does not answer, before the training and after it
_WAIT_SECONDS = 1.0

T = TypeVar("T")


def retried(step: Callable[[], T]) -> T:
    """Result of *step*, which is repeated for `BUCKET_SECONDS` while the bucket fails.

    Raises:
        BucketError: It failed for that long.
    """
    give_up = time.monotonic() + BUCKET_SECONDS
    while True:
        try:
            return step()
        except BucketError as error:
            if time.monotonic() >= give_up:
                raise
            say(f"the bucket cannot be used now: {error}")
            time.sleep(_WAIT_SECONDS)


def say(text: str) -> None:
    """Write *text* to the job's log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
