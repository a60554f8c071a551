"""Test cases for a candidate, its resource limits, and the result of running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from agents.se_darwin.fork_server.canonical import canonical

OutputKind = Literal["value", "raise", "strange", "endless"]
End = Literal["exit", "timeout", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Resource limits of one candidate.

    Attributes:
        cpu_seconds: CPU time for all tests together.
        wall_seconds: Wall-clock time after which its process group is killed.
        memory_bytes: Address space beyond that of the bare interpreter.
    """

    cpu_seconds: float = 0.05
    wall_seconds: float = 2.0
    memory_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if min(self.cpu_seconds, self.wall_seconds, self.memory_bytes) <= 0:
            raise ValueError(f"limits must be above zero, got {self}")

    def times(self, factor: float) -> Limits:
        """Return a copy with *factor* times the CPU and wall-clock time."""
        return replace(
            self,
            cpu_seconds=factor * self.cpu_seconds,
            wall_seconds=factor * self.wall_seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Result of one test.

    Attributes:
        kind: ``value``, ``raise``, ``strange`` for a value that cannot be compared, or ``endless``
            for a check that was interrupted because it took too much of the time for all.
        text: Canonical text of the value, or the exception's name.
        arguments: Canonical text of the positional arguments after the call; for a check of a test
            suite, of the expected value.
        lines: Numbers of the source lines that ran, and minus the numbers of those in which an
            exception was raised; empty without coverage.
    """

    kind: OutputKind
    text: str
    arguments: str
    lines: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """Results of all tests of one candidate.

    Attributes:
        outputs: One per test; None for a test that did not finish.
        end: How the process ended; after anything but ``exit``, later tests did not run.
        cpu_seconds: User and system CPU time.
        refused: What the sandbox does not allow and a test of a suite needs, by the test's name.
        missing_modules: Modules that a suite asked for and the sandbox does not have.
    """

    outputs: tuple[Output | None, ...]
    end: End
    cpu_seconds: float = 0.0
    refused: Mapping[str, str] = field(default_factory=dict)
    missing_modules: tuple[str, ...] = ()

    @property
    def hung(self) -> bool:
        """Whether a check was interrupted, used up the time or filled the memory."""
        return self.end == "timeout" or any(
            output is not None and (output.kind == "endless" or output.text == "MemoryError")
            for output in self.outputs
        )

    @property
    def lost_at(self) -> int | None:
        """Number of the test in which the process ended before its time; None if in none."""
        if self.end == "timeout" or self.outputs[-1:] != (None,):
            return None
        return max((n for n, output in enumerate(self.outputs, 1) if output is not None), default=0)

    @classmethod
    def parse(cls, text: str, tests: int, *, end: End, cpu_seconds: float) -> Execution:
        """Parse a child's output; ignore invalid lines; the first result of a test counts."""
        outputs: list[Output | None] = [None] * tests
        refused: dict[str, str] = {}
        missing_modules: tuple[str, ...] = ()
        for line in text.splitlines():
            try:
                number, kind, *others = json.loads(line)
                if number == "missing":
                    missing_modules = tuple(map(str, kind))
                    continue
                result, *others = others
                if number == "refused":
                    refused[str(kind)] = str(result)
                    continue
                arguments, lines = others
                if kind in get_args(OutputKind) and outputs[number] is None:
                    outputs[number] = Output(
                        kind=kind,
                        text=str(result),
                        arguments=str(arguments),
                        lines=frozenset(map(int, lines)),
                    )
            except (ValueError, TypeError, IndexError, OverflowError, RecursionError):
                continue  # cut off by the deadline, or forged: the test counts as unfinished
        return cls(
            outputs=tuple(outputs),
            end=end,
            cpu_seconds=cpu_seconds,
            refused=refused,
            missing_modules=missing_modules,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TestCase:
    """Arguments of a call and its expected result, which never enters the sandbox.

    Attributes:
        arguments: Positional arguments; literals only.
        keywords: Keyword arguments; literals only.
        kind: Whether a value or an exception is expected.
        expected: Canonical text of the value, or name of the exception.
        expected_arguments: Canonical text of the arguments after the call; None accepts any.
    """

    __test__ = False  # pytest must not collect it

    arguments: tuple[object, ...]
    keywords: Mapping[str, object] = field(default_factory=dict)
    kind: Literal["value", "raise"] = "value"
    expected: str
    expected_arguments: str | None = None

    @classmethod
    def returning(cls, arguments: tuple[object, ...], value: object) -> TestCase:
        """Return a test case whose call must return *value*."""
        return cls(arguments=arguments, expected=canonical(value))

    def passes(self, output: Output | None) -> bool:
        """Whether *output* is the expected result."""
        return (
            output is not None
            and output.kind == self.kind
            and output.text == self.expected
            and self.expected_arguments in (None, output.arguments)
        )
