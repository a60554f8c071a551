"""What a candidate is run on, what it may use, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from agents.se_darwin.jail.canonical import canonical

OutputKind = Literal["value", "raise", "strange"]
End = Literal["exit", "timeout", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one candidate may use.

    Attributes:
        cpu_seconds: CPU time over all its tests.
        wall_seconds: Deadline at which its process group is killed.
        memory_bytes: Address space beyond that of the bare interpreter.
    """

    cpu_seconds: float = 0.05
    wall_seconds: float = 2.0
    memory_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if min(self.cpu_seconds, self.wall_seconds, self.memory_bytes) <= 0:
            raise ValueError(f"limits must be above zero, got {self}")

    def times(self, factor: float) -> Limits:
        """The same with *factor* times the CPU and wall-clock time."""
        return replace(
            self,
            cpu_seconds=factor * self.cpu_seconds,
            wall_seconds=factor * self.wall_seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a candidate did on one test.

    Attributes:
        kind: ``value``, ``raise``, or ``strange`` for a value that cannot be compared.
        text: Canonical text of the value, or the exception's name.
        arguments: Canonical text of the positional arguments after the call; of a check in an
            exam, of what was wanted.
        lines: Numbers of the source lines run; empty unless coverage was asked for.
    """

    kind: OutputKind
    text: str
    arguments: str
    lines: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """What a candidate did on all tests; None where it never finished one.

    Attributes:
        outputs: One per test.
        end: How its process ended; anything but ``exit`` leaves later tests undone.
        cpu_seconds: What it cost, user and system.
    """

    outputs: tuple[Output | None, ...]
    end: End
    cpu_seconds: float = 0.0

    @classmethod
    def parse(cls, text: str, tests: int, *, end: End, cpu_seconds: float) -> Execution:
        """Read what a child wrote; lines that are no result are ignored, a first result stays."""
        outputs: list[Output | None] = [None] * tests
        for line in text.splitlines():
            try:
                number, kind, result, arguments, lines = json.loads(line)
                if kind in ("value", "raise", "strange") and outputs[number] is None:
                    outputs[number] = Output(
                        kind=kind,
                        text=str(result),
                        arguments=str(arguments),
                        lines=frozenset(map(int, lines)),
                    )
            except (ValueError, TypeError, IndexError, OverflowError, RecursionError):
                continue  # torn by the deadline, or forged: that test counts as not done
        return cls(outputs=tuple(outputs), end=end, cpu_seconds=cpu_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class TestCase:
    """Arguments and what the right program makes of them. The expectation stays out of the jail.

    Attributes:
        arguments: Positional arguments; literals only.
        keywords: Keyword arguments; literals only.
        kind: Whether a value or an exception is expected.
        expected: Canonical text of the value, or the exception's name.
        expected_arguments: Canonical text of the arguments after the call, where that matters.
    """

    __test__ = False  # not a test class to pytest

    arguments: tuple[object, ...]
    keywords: Mapping[str, object] = field(default_factory=dict)
    kind: Literal["value", "raise"] = "value"
    expected: str
    expected_arguments: str | None = None

    @classmethod
    def returning(cls, arguments: tuple[object, ...], value: object) -> TestCase:
        """A call that must return *value*."""
        return cls(arguments=arguments, expected=canonical(value))

    def passes(self, output: Output | None) -> bool:
        """Whether *output* is what the right program would have done."""
        return (
            output is not None
            and output.kind == self.kind
            and output.text == self.expected
            and self.expected_arguments in (None, output.arguments)
        )
