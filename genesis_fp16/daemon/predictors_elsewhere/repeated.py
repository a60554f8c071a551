"""A step that a thread repeats, so that a bucket that does not answer holds nobody up."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

EVERY_SECONDS = 2.0
LONGEST_SECONDS = 60.0  # between two tries while they fail
END_SECONDS = 15.0

log = structlog.get_logger()


class Repeated:
    """Repeats *step* until it is closed; an error is logged when it begins and when it ends.

    Args:
        step: Raises OSError or ValueError if it fails; it is tried again.
        last: Whether to do it once more at the end.
    """

    def __init__(self, step: Callable[[], None], *, last: bool = False) -> None:
        self._step, self._last, self._problem = step, last, ""
        self._ended, self.done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True, name="predictors")
        self._thread.start()

    def close(self) -> None:
        """End within `END_SECONDS`."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    def _repeat(self) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            wait = EVERY_SECONDS if self._try() else min(LONGEST_SECONDS, 2 * wait + 1.0)
        if self._last:
            self._try()

    def _try(self) -> bool:
        try:
            self._step()
        except (OSError, ValueError) as error:
            if str(error) != self._problem:
                remedy = "it is tried again; nothing acknowledged is lost"
                log.error("predictors_not_exchanged", error=str(error), remedy=remedy)
            self._problem = str(error)
            return False
        if self._problem:
            log.info("predictors_exchanged_again")
        self._problem = ""
        self.done.set()
        return True
