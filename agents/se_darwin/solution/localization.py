"""Finds the functions of a program that its failing tests visit: spectrum-based localisation.

Suspicion is that of Ochiai (Abreu, Zoeteweij and van Gemund, "An evaluation of similarity
coefficients for software fault localization", 2006), of functions instead of lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.sandbox import Execution, Limits, PytestSuite, PytestSuiteError, Sandbox
from agents.se_darwin.sandbox.execution import TestCase
from agents.se_darwin.tasks.evaluation import ochiai

MOST_FUNCTIONS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class SuspiciousFunction:
    """A function that failing checks visit, or checks before them in the same test.

    Attributes:
        name: ``function`` or ``Class.method``.
        line: Line of its definition.
        suspicion: Ochiai suspicion, in (0, 1].
        failing: Failing checks that visit it, of *all_failing*.
        passing: Passing checks that visit it, of *all_passing*.
    """

    name: str
    line: int
    suspicion: float
    failing: int
    passing: int
    all_failing: int
    all_passing: int

    def __str__(self) -> str:
        return (
            f"{self.name} (line {self.line}): suspicion {self.suspicion:.2f}, visited by "
            f"{self.failing} of {self.all_failing} failing and {self.passing} of "
            f"{self.all_passing} passing checks"
        )


def suspicious_functions(
    suite: PytestSuite, sandbox: Sandbox, limits: Limits
) -> list[SuspiciousFunction]:
    """Return at most `MOST_FUNCTIONS` functions of the suite's program, the most suspicious first.

    Of equally suspicious ones, those in which an exception is raised come first, then the shorter.

    Args:
        suite: All tests of the program.
        sandbox: Sandbox in which they run.
        limits: Limits of all tests together.

    Raises:
        PytestSuiteError: The tests cannot be run, do not end, all pass, or fail in no function.
    """
    code = suite.program.code
    suite = replace(sandbox.collect(suite, function="", limits=limits), within=True)
    [execution] = sandbox.run([code], suite, function="", coverage=True, limits=limits)
    cases = suite.cases()
    passed = [case.passes(output) for case, output in zip(cases, execution.outputs, strict=True)]
    if all(passed):
        raise PytestSuiteError(f"nothing to repair: all {len(cases)} checks pass")
    visited = list(_visited(cases, execution))
    found = [
        function
        for name, node in _functions(ast.parse(code).body)
        if (function := _measure(name, node, visited, passed)) is not None
    ]
    if not found:
        failing = _first_failing(cases, passed)
        raise PytestSuiteError(
            f"no failing check visits a function of the program ({failing} fails outside): name "
            "the function, FILE::FUNCTION"
        )
    raising = {-line for output in execution.outputs if output for line in output.lines if line < 0}
    lines = {name: _lines(node) for name, node in _functions(ast.parse(code).body)}
    found.sort(
        key=lambda function: (
            -function.suspicion,
            not raising.intersection(lines[function.name]),
            len(lines[function.name]),
        )
    )
    return found[:MOST_FUNCTIONS]


def _visited(cases: Sequence[TestCase], execution: Execution) -> Iterator[frozenset[int]]:
    """Yield the lines that each check visits, or those before it in its test."""
    lines, test = frozenset[int](), ""
    for case, output in zip(cases, execution.outputs, strict=True):
        name = str(case.arguments[0]).partition(",")[0]
        lines, test = lines if name == test else frozenset(), name
        lines |= output.lines if output is not None else frozenset()
        yield lines


def _measure(
    name: str, node: FunctionNode, visited: Sequence[frozenset[int]], passed: Sequence[bool]
) -> SuspiciousFunction | None:
    """Return how checks visit the function; None if no failing one does."""
    lines = _lines(node)
    visits = [
        is_passed
        for is_passed, there in zip(passed, visited, strict=True)
        if not there.isdisjoint(lines)
    ]
    failing, failures = visits.count(False), passed.count(False)
    if not failing:
        return None
    return SuspiciousFunction(
        name=name,
        line=node.lineno,
        suspicion=ochiai(failing, failures, visits.count(True)),
        failing=failing,
        passing=visits.count(True),
        all_failing=failures,
        all_passing=len(passed) - failures,
    )


def _functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Yield the functions that can be named, each by the definition that counts."""
    scope = ast.Module([*body], [])
    for node in body:
        if isinstance(node, FunctionNode):
            try:
                counts = definition_of(scope, node.name) is node
            except ValueError:  # the setter of a property
                continue
            if counts:
                yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _lines(node: FunctionNode) -> range:
    """Lines that run when the function is called, not when it is defined."""
    last = node.body[-1]
    return range(max(node.lineno + 1, node.body[0].lineno), (last.end_lineno or last.lineno) + 1)


def _first_failing(cases: Sequence[TestCase], passed: Sequence[bool]) -> str:
    return str(cases[list(passed).index(False)].arguments[0])
