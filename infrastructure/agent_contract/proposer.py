"""What a proposer is: a plugin that writes candidates for a function under repair.

A distribution registers a factory in the entry-point group ``genesis.proposers``. SE-Darwin calls
it with the user's options and asks the proposer for candidates; it runs them in its own sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pydantic import JsonValue

PROPOSERS_GROUP = "genesis.proposers"
EDITS = "edits"
"""Name of the proposer that is always there: SE-Darwin's own edits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailingCheck:
    """A check that a program fails.

    Attributes:
        name: Name of the check: a call, or the test and its assert.
        expected: Text of the value that it expects; empty if that is not known.
        got: Text of the value that it got, or name of the exception; empty if it did not end.
    """

    name: str
    expected: str
    got: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SuspiciousLine:
    """A line of the program that failing checks run.

    Attributes:
        line: Number of the line in the program, from 1.
        suspicion: Ochiai suspiciousness, in [0, 1].
    """

    line: int
    suspicion: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedProgram:
    """A program that was run.

    Attributes:
        function: Source of the function in it.
        passed: Number of checks that it passes.
        failing: The first checks that it fails.
    """

    function: str
    passed: int
    failing: tuple[FailingCheck, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposalRequest:
    """A request for candidates.

    Attributes:
        program: Source of the module as its author wrote it.
        function: Name of the function to repair, or ``Class.method``.
        description: What the caller says about the problem.
        checks: Number of checks.
        failing: Checks that the program fails.
        suspicious: Lines of the function that failing checks run, the most suspicious first.
        best: Best program so far, if it passes more checks than the given one.
        tried: Candidates of this proposer that were run, the newest last.
        round: Number of rounds before this one.
        candidates: Most candidates that are taken from now on.
        seconds: Seconds until the search ends; infinite if nothing limits it.
        is_cancelled: Whether the candidates are not needed any more; ask it while waiting.
    """

    program: str
    function: str
    description: str
    checks: int
    failing: tuple[FailingCheck, ...]
    suspicious: tuple[SuspiciousLine, ...]
    best: TriedProgram | None
    tried: tuple[TriedProgram, ...]
    round: int
    candidates: int
    seconds: float
    is_cancelled: Callable[[], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposedFunction:
    """A candidate.

    Attributes:
        code: Source of the whole function, or of a module that contains it. It may import modules
            and define new functions; another function of the program must stay as it is.
    """

    code: str


class Proposer(Protocol):
    """Writes candidates."""

    def propose(self, request: ProposalRequest) -> Iterator[ProposedFunction]:
        """Yield candidates for *request*, one round of them.

        It is called in a thread of its own, again when the candidates of the last round were run,
        until it yields nothing or enough were taken. An exception ends this proposer, not the
        search.
        """

    def preview(self, request: ProposalRequest) -> str:
        """Return what `propose` would send to another process; empty if it sends nothing."""

    def summary(self) -> str:
        """Return in one line what it has done and spent; empty if there is nothing to tell."""


ProposerFactory = Callable[[Mapping[str, "JsonValue"]], Proposer]
"""Makes a proposer from the user's options; raises `ValueError` if they are wrong."""
