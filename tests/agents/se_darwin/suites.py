"""A program, and what runs tests in the style of pytest against it in a sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.se_darwin.sandbox import (
    Execution,
    Limits,
    ProgramSources,
    PytestSuite,
    Sandbox,
    TestSources,
)

PROGRAM = """
from dataclasses import dataclass

@dataclass
class Point:
    x: int

class WrongError(Exception):
    pass

def twice(x):
    return 2 * solve(x)

def solve(x, low=0):
    if x == "point":
        return Point(low)
    if x < low:
        raise WrongError("below", low)
    return x + 1
"""

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=5.0)


def open_pytest_sandbox() -> Sandbox:
    """Open a sandbox in which tests may import pytest."""
    return Sandbox(modules=["pytest"], packages=[Path(pytest.__file__).parents[1]])


def prepare(
    sandbox: Sandbox, tests: str | TestSources, program: str = PROGRAM, module: str = "mod"
) -> PytestSuite:
    """Prepare *tests* of the function ``solve`` of *program* and list their checks."""
    sources = TestSources(tests) if isinstance(tests, str) else tests
    suite = PytestSuite.prepare(sources, ProgramSources(program, module), "solve")
    return sandbox.collect(suite, function="solve", limits=LIMITS)


def run(
    sandbox: Sandbox, suite: PytestSuite, source: str = PROGRAM, *, coverage: bool = False
) -> Execution:
    """Run *suite* with *source* as its program."""
    [execution] = sandbox.run([source], suite, function="solve", limits=LIMITS, coverage=coverage)
    return execution


def passed(sandbox: Sandbox, tests: str | TestSources, source: str = PROGRAM) -> dict[str, bool]:
    """Tell by name which checks of *tests* the program *source* passes."""
    suite = prepare(sandbox, tests)
    outputs = run(sandbox, suite, source).outputs
    pairs = zip(suite.cases(), outputs, strict=True)
    return {str(case.arguments[0]): case.passes(output) for case, output in pairs}
