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
from agents.se_darwin.solution.preparation import list_checks
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Localization:
    """What the tests of a whole file say.

    Attributes:
        checks: Names of all checks that can be run.
        passed: Whether the program passes each.
        functions: At most `MOST_FUNCTIONS` functions that failing checks visit, the most suspicious
            first. Of equally suspicious ones, those in which an exception is raised come first,
            then the shorter.
        left_out: Why a test cannot be run, for each such test.
    """

    checks: tuple[str, ...]
    passed: tuple[bool, ...]
    functions: tuple[SuspiciousFunction, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, suite: PytestSuite, sandbox: Sandbox, limits: Limits) -> Localization:
        """Run *suite*, all tests of a program, in *sandbox* within *limits*.

        Raises:
            PytestSuiteError: The tests cannot be run.
        """
        code = suite.program.code
        suite = replace(list_checks(suite, "", sandbox, limits), within=True)
        [execution] = sandbox.run([code], suite, function="", coverage=True, limits=limits)
        if execution.refused:
            suite = list_checks(suite.without(execution.refused, ""), "", sandbox, limits)
            [execution] = sandbox.run([code], suite, function="", coverage=True, limits=limits)
        cases = suite.cases()
        pairs = zip(cases, execution.outputs, strict=True)
        passed = tuple(case.passes(output) for case, output in pairs)
        return cls(
            checks=suite.checks,
            passed=passed,
            functions=tuple(_suspicious(code, cases, execution, passed)),
            left_out=suite.left_out,
        )

    @property
    def failing(self) -> list[str]:
        """Names of the checks that the program fails."""
        pairs = zip(self.checks, self.passed, strict=True)
        return [name for name, is_passed in pairs if not is_passed]

    def require_failures(self) -> None:
        """Raise an error if there is nothing to repair, or no function to try.

        Raises:
            PytestSuiteError: All checks pass, or no failing one visits a function.
        """
        if all(self.passed):
            raise PytestSuiteError(f"nothing to repair: all {len(self.checks)} checks pass")
        if not self.functions:
            raise PytestSuiteError(
                f"no failing check visits a function of the program ({self.failing[0]} fails "
                "outside): name the function, FILE::FUNCTION"
            )


def _suspicious(
    code: str, cases: Sequence[TestCase], execution: Execution, passed: Sequence[bool]
) -> list[SuspiciousFunction]:
    visited = list(_visited(cases, execution))
    functions = dict(_functions(ast.parse(code).body))
    found = [
        function
        for name, node in functions.items()
        if (function := _measure(name, node, visited, passed)) is not None
    ]
    raising = {-line for output in execution.outputs if output for line in output.lines if line < 0}
    lines = {name: _lines(node) for name, node in functions.items()}
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
