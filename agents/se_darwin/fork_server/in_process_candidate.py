"""The candidate in the process of its tests, which call it as any function."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .own_equality import own_equality
from .wire import Call

CANDIDATE_FILE = "<candidate>"
_SHARE, _AGAIN_SECONDS = 0.5, 0.01


class EndlessError(BaseException):
    """Interrupts a candidate that takes half of the CPU time which is left for all checks."""


@contextmanager
def covered_lines(coverage: bool) -> Iterator[set[int]]:
    """Collect the candidate's lines that run in the block; empty without *coverage*.

    A line that an exception leaves, or in which it is handled, is also there with a minus sign.
    """
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - settrace's own
        if frame.f_code.co_filename != CANDIDATE_FILE:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        elif event == "exception":
            lines.add(-frame.f_lineno)
        return trace

    if coverage:
        sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


class InProcessCandidate:
    """What a `Check` asks about a candidate that runs in this process.

    Args:
        coverage: Whether to see which lines run.
        module: Name of the program's module.
        given: Source of the program as given; empty if no candidate is to be judged.

    Attributes:
        keeps_calls: Not used: calls are seen in a process of their own only.
    """

    def __init__(self, coverage: bool, module: str = "", given: str = "") -> None:
        self._coverage, self._module, self._given = coverage, module, given
        self._lines: set[int] = set()
        self.keeps_calls = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See which lines run in the block."""
        signal.signal(signal.SIGVTALRM, _interrupt)
        self.grant_time()
        try:
            with covered_lines(self._coverage) as self._lines:
                yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def grant_time(self) -> None:
        """Let the candidate take half of the CPU time that is left, from now on.

        So a check that does not end costs itself; the candidate may hang in each.
        """
        left, _ = signal.getitimer(signal.ITIMER_PROF)
        if left:
            signal.setitimer(signal.ITIMER_VIRTUAL, _SHARE * left, _AGAIN_SECONDS)

    def take_covered_lines(self) -> set[int]:
        """Return the lines that ran since the last call of this method, and forget them."""
        lines = set(self._lines)
        self._lines.clear()
        return lines

    def take_calls(self) -> list[Call]:
        """Return no calls."""
        return []

    def own_equality(self, *values: object) -> str | None:
        """Return the name of a class in *values* whose ``==`` the candidate has added, if any."""
        given = self._given
        return own_equality(values, self._module, CANDIDATE_FILE, given) if given else None

    def has_raised(self, error: BaseException) -> bool:
        """Whether *error* passed through the candidate."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == CANDIDATE_FILE:
                return True
            trace = trace.tb_next
        return False


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise `EndlessError` if the candidate runs, and not what sees its lines."""
    if frame is not None and frame.f_code.co_filename == __file__:
        return
    while frame is not None:
        if frame.f_code.co_filename == CANDIDATE_FILE:
            raise EndlessError
        frame = frame.f_back
