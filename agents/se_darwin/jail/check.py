"""One check of a test: an assert, or that the test ends."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from .canonical import UncomparableError, canonical
from .stand_in import StandIn

HELD = "held"


class Failure(NamedTuple):
    """How a check first failed: *text* is the value got or the exception's name."""

    kind: str
    text: str
    wanted: str


class Check:
    """A check, as often as it is made. As a context it notes how its block ends, and goes on.

    Going on is sound: a test that fails anywhere has failed, and where nothing fails, every
    statement runs as it would without this.

    Args:
        stand_in: Whose lines are charged to this check.

    Attributes:
        made: Whether it was made and held at least once.
        failure: How it first failed, if it did.
        lines: Lines of the candidate run for it.
    """

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in
        self._difference: Failure | None = None
        self.made = False
        self.failure: Failure | None = None
        self.lines: set[int] = set()

    def equal(self, got: object, wanted: object) -> object:
        """``got == wanted``; where they are not, both are kept for the record."""
        same = got == wanted
        if not same:
            with suppress(UncomparableError):
                self._difference = Failure("value", canonical(got), canonical(wanted))
        return same

    def note(self, error: BaseException | None) -> None:
        """Take the lines run since the last check, and *error* as the outcome."""
        self.lines |= self._stand_in.take_lines()
        if error is None:
            self.made = True
        elif self.failure is None:
            if isinstance(error, UncomparableError):
                self.failure = Failure("strange", str(error), "")
            else:
                self.failure = self._difference or Failure("raise", type(error).__name__, "")

    def __enter__(self) -> Check:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None or isinstance(error, Exception):
            self.note(error)
        return isinstance(error, Exception)
