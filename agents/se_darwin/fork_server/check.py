"""A check is one assert of a test, or the fact that the test ends."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from .canonical import UncomparableError, canonical
from .function_proxy import MAX_CALLS, FunctionProxy
from .in_process_candidate import EndlessError, InProcessCandidate
from .refusal import refusal
from .wire import Call

PASSED = "passed"


class Failure(NamedTuple):
    """First failure of a check; *text* is the actual value or the name of the exception."""

    kind: str
    text: str
    expected: str


class Check:
    """One check, which may be reached many times. As a context manager it suppresses failures.

    Suppressing a failure is sound: the test has failed already. A test in which nothing fails
    runs exactly the statements that it would run without checks.

    Args:
        candidate: What the tests call; the lines it covers are attributed to this check.

    Attributes:
        has_passed: Whether the check was reached and passed at least once.
        failure: The first failure, or None.
        refusal: What the sandbox refused, if that was the first failure.
        lines: Lines of the candidate that ran for this check.
        calls: First calls of the candidate for this check, if they are kept.
    """

    def __init__(self, candidate: FunctionProxy | InProcessCandidate) -> None:
        self._candidate = candidate
        self._difference: Failure | None = None
        self.has_passed = False
        self.failure: Failure | None = None
        self.refusal = ""
        self.lines: set[int] = set()
        self.calls: list[Call] = []

    def equal(self, actual: object, expected: object) -> object:
        """Return ``actual == expected``; if they differ, keep both for the report.

        They also differ if a class that the candidate has added decides it.
        """
        is_equal = actual == expected
        if is_equal and (name := self._candidate.own_equality(actual, expected)):
            self._difference = Failure("strange", f"a {name} has comparisons of its own", "")
            return False
        if not is_equal:
            with suppress(UncomparableError):
                self._difference = Failure("value", canonical(actual), canonical(expected))
        return is_equal

    def record(self, error: BaseException | None) -> None:
        """Record lines and calls since the last check, and *error* as this check's outcome."""
        self.lines |= self._candidate.take_covered_lines()
        self.calls += self._candidate.take_calls()[: MAX_CALLS - len(self.calls)]
        if error is None:
            self.has_passed = True
        elif self.failure is None:
            self.refusal = refusal(error, is_own=self._candidate.has_raised(error))
            if isinstance(error, UncomparableError):
                self.failure = Failure("strange", str(error), "")
            elif isinstance(error, EndlessError):
                self.failure = Failure("endless", "", "")
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
        is_own = isinstance(error, Exception | EndlessError)
        if error is None or is_own:
            self.record(error)
        self._candidate.grant_time()
        return is_own
