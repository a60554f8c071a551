"""Run the caller's test module in a process of its own, which no candidate's code enters.

The process holds the program's module as given, with a proxy in place of the function under
repair. So a candidate can change its own answers and nothing else: neither the tests, nor what
they expect, nor what is reported.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import ModuleType
from typing import Any, TypedDict

from .check import PASSED, Check
from .function_proxy import CandidateLostError, FunctionProxy
from .wire import Wire, make_module

CHECK_NAME = "__check__"


class SuiteRequest(TypedDict):
    """A prepared test module; see `agents.se_darwin.sandbox.PytestSuite`."""

    program: str
    module_names: list[str]
    tests: str
    assert_lines: dict[str, list[int]]
    end_checks: list[str]


class UnsupportedTestError(ValueError):
    """The test module uses something that the sandbox does not support."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Test:
    """One call of a test function: the lines of its asserts, and whether its end is a check."""

    name: str
    function: Callable[..., object]
    keywords: Mapping[str, object]
    lines: list[int]
    has_end_check: bool

    @property
    def check_names(self) -> list[str]:
        """Names of its checks, in order."""
        return [
            *(f"{self.name}, line {line}" for line in self.lines),
            *[self.name] * self.has_end_check,
        ]


def run_suite(
    suite: SuiteRequest, function: str, calls: int, answers: int, *, collect: bool
) -> Iterator[list[object]]:
    """Run *suite*, or with *collect* only list its checks: ``["checks", names]`` or a problem.

    Args:
        suite: The test module.
        function: Name of the function under repair.
        calls, answers: Descriptors to and from the candidate.
        collect: Whether to list the checks without running them.

    Yields:
        ``[check, kind, text, expected, lines run]``; nothing after the candidate is lost.
    """
    try:
        runner = SuiteRunner(suite, function, calls, answers)
    except UnsupportedTestError as error:
        yield ["problem", str(error)]
    except BaseException as error:  # the module or its tests may raise anything on import
        hint = " (the sandbox opens no files)" if isinstance(error, OSError) else ""
        raised = f"{type(error).__name__}: {error}{hint}"
        yield ["problem", f"importing the program and its tests raised {raised}"]
    else:
        if collect and not runner.tests:
            yield ["problem", f"all tests of {function} are skipped or have no parameters"]
        elif collect:
            yield ["checks", [name for test in runner.tests for name in test.check_names]]
        else:
            yield from runner.run()


class SuiteRunner:
    """Collects a test module and runs it against one candidate.

    Args:
        suite: The test module.
        function: Name of the function under repair.
        calls, answers: Descriptors to and from the candidate.

    Raises:
        UnsupportedTestError: The sandbox does not support the module.
    """

    def __init__(self, suite: SuiteRequest, function: str, calls: int, answers: int) -> None:
        name, *others = suite["module_names"]
        module = make_module(name, suite["program"], "<program>")
        self._proxy = FunctionProxy(function, Wire(module), calls, answers)
        setattr(module, function, self._proxy)
        for other in others:
            _register(other, module)
        self._checks: list[Check] = []
        namespace: dict[str, Any] = {
            "__name__": "tests",
            "__file__": "tests.py",
            CHECK_NAME: self._check,
        }
        code = compile(suite["tests"], "<tests>", "exec", dont_inherit=True)
        exec(code, namespace)  # noqa: S102 - the caller's tests, in the sandbox
        marks = _as_list(namespace.get("pytestmark", []))
        self.tests = [
            test
            for name, lines in suite["assert_lines"].items()
            for test in _collect(name, namespace[name], marks, lines, name in suite["end_checks"])
        ]

    def run(self) -> Iterator[list[object]]:
        """Yield the outcome of each check, as `run_suite` does."""
        number = 0
        for test in self.tests:
            self._checks = [Check(self._proxy) for _ in test.lines]
            end, lost = Check(self._proxy), False
            try:
                test.function(**test.keywords)
                end.has_passed = True
            except CandidateLostError:
                lost = True
            except BaseException as error:  # the exception is how the test fails
                end.record(error)
            for check in [*self._checks, *[end] * test.has_end_check]:
                if check.failure is None and not check.has_passed and end.failure is not None:
                    check.failure, check.lines = end.failure, end.lines
                if check.failure is not None:
                    yield [number, *check.failure, sorted(check.lines)]
                elif check.has_passed or not lost:
                    yield [number, "value", PASSED, "", sorted(check.lines)]
                number += 1
            if lost:
                return

    def _check(self, number: int) -> Check:
        return self._checks[number]


def _register(name: str, module: ModuleType) -> None:
    """Let tests import *module* as *name*, which may be a dotted name."""
    package, _, last = name.rpartition(".")
    if package:
        if package not in sys.modules:
            _register(package, ModuleType(package))
        setattr(sys.modules[package], last, module)
    sys.modules[name] = module


def _as_list(marks: Any) -> list[Any]:  # noqa: ANN401 - pytest's own
    return list(marks) if isinstance(marks, list | tuple) else [marks]


def _collect(
    name: str,
    function: Callable[..., object],
    marks: list[Any],
    lines: list[int],
    has_end_check: bool,
) -> Iterator[_Test]:
    """Yield the calls of one test function: one, or one for each set of parameters.

    Args:
        name, function: The test.
        marks: Marks of its module.
        lines: Lines of its asserts.
        has_end_check: Whether its end is a check.
    """
    if inspect.isgeneratorfunction(function):
        raise UnsupportedTestError(
            f"{name} contains `yield`, so calling it runs nothing; remove the `yield`"
        )
    marks = [*marks, *getattr(function, "pytestmark", [])]
    if any(mark.name == "skip" for mark in marks):
        return
    for mark in marks:
        if mark.name != "parametrize":
            raise UnsupportedTestError(
                f"{name} is marked {mark.name!r}; only parametrize and skip are supported"
            )
    rows: list[list[dict[str, object]]] = [list(_rows(*mark.args[:2])) for mark in marks]
    for number, chosen in enumerate(product(*rows)):
        keywords = {key: value for row in chosen for key, value in row.items()}
        missing = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty and parameter.name not in keywords
        ]
        if missing:
            raise UnsupportedTestError(
                f"{name} needs {', '.join(missing)}: fixtures are not supported; "
                "create the value in the test"
            )
        numbered = f"{name}[{number}]" if marks else name
        yield _Test(
            name=numbered,
            function=function,
            keywords=keywords,
            lines=lines,
            has_end_check=has_end_check,
        )


def _rows(names: Any, values: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401 - pytest's own
    keys = [key.strip() for key in names.split(",")] if isinstance(names, str) else list(names)
    for value in values:
        row = value if len(keys) > 1 else (value,)
        if type(value).__name__ == "ParameterSet":  # made by pytest.param
            row = value.values
        yield dict(zip(keys, row, strict=True))
