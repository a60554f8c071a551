"""Run the caller's test module in a process of its own, which no candidate's code enters.

The process holds the program's module as given, with a proxy in place of the function under
repair. So a candidate can change its own answers and nothing else: neither the tests, nor what
they expect, nor what is reported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TypedDict

from .check import PASSED, Check
from .collector import Collector, Test
from .fixtures import Fixtures, UnsupportedTestError
from .function_proxy import CandidateLostError, FunctionProxy, is_raised_by_candidate
from .given_modules import GivenModules, import_program, module_names
from .place import UnsupportedFunctionError, replace_function
from .wire import ProgramNames, Wire

CHECK_NAME = "__check__"
_TESTS_NAME = "__tests__"  # a package `tests` of the caller's keeps its name
_SKIPPED = ("Skipped", "SkipTest")  # raised by pytest.skip and by unittest


class SuiteRequest(TypedDict):
    """A prepared test module; see `agents.se_darwin.sandbox.PytestSuite`."""

    program: str
    module: str
    own_modules: dict[str, str]
    aliases: dict[str, str]
    tests: str
    conftests: list[str]
    helpers: dict[str, str]
    assert_lines: dict[str, list[int]]
    end_checks: list[str]


def run_suite(
    suite: SuiteRequest, function: str, calls: int, answers: int, *, task: str
) -> Iterator[list[object]]:
    """Run *suite*, or list it: ``["checks", names, left out]`` or a problem.

    Args:
        suite: The test module.
        function: Name of the function under repair.
        calls, answers: Descriptors to and from the candidate.
        task: ``run``; ``collect`` to list the checks without running them; ``record`` to run and
            list the calls of the function.

    Yields:
        ``[check, kind, text, expected, lines run]``; nothing after the candidate is lost. To
        record, ``["call", check, call]``.
    """
    try:
        runner = SuiteRunner(suite, function, calls, answers)
    except UnsupportedFunctionError as error:
        yield ["problem", str(error)]
    except BaseException as error:  # the module or its tests may raise anything on import
        hint = " (the sandbox opens no files)" if isinstance(error, OSError) else ""
        raised = f"{type(error).__name__}: {error}{hint}"
        yield ["problem", f"importing the program and its tests raised {raised}"]
    else:
        if task == "collect" and not runner.tests:
            reason = "are skipped or have no parameters"
            if runner.left_out:
                reason = f"cannot be run: {'; '.join(runner.left_out)}"
            yield ["problem", f"all tests of {function} {reason}"]
        elif task == "collect":
            names = [name for test in runner.tests for name in test.check_names]
            yield ["checks", names, runner.left_out]
        else:
            yield from runner.run(record=task == "record")


class SuiteRunner:
    """Collects a test module and runs it against one candidate.

    Args:
        suite: The test module.
        function: Name of the function under repair.
        calls, answers: Descriptors to and from the candidate.

    Attributes:
        tests: Calls of tests to run.
        left_out: Why a test cannot be run, for each such test.
    """

    def __init__(self, suite: SuiteRequest, function: str, calls: int, answers: int) -> None:
        own_modules = suite["own_modules"]
        module = import_program(suite["module"], suite["program"], "<program>", own_modules)
        others = module_names(own_modules)
        wire = Wire(ProgramNames(module, others))
        self._proxy = FunctionProxy(function, wire, calls, answers)
        loaded = [sys.modules[name] for name in others if name in sys.modules]
        replace_function(module, function, self._proxy, loaded)
        for other, name in suite["aliases"].items():
            _register(other, importlib.import_module(name))
        self._checks: list[Check] = []
        self.left_out: list[str] = []
        sys.meta_path.append(GivenModules(suite["helpers"]))
        conftests = [_execute("conftest", source) for source in suite["conftests"]]
        namespace = _execute(_TESTS_NAME, suite["tests"], {CHECK_NAME: self._check})
        self._collector = Collector(namespace, Fixtures([*conftests, namespace]))
        self.tests: list[Test] = []
        for name, lines in suite["assert_lines"].items():
            try:
                self.tests += self._collector.collect(name, lines, name in suite["end_checks"])
            except UnsupportedTestError as error:
                self.left_out.append(str(error))

    def run(self, *, record: bool = False) -> Iterator[list[object]]:
        """Yield the outcome, or the calls, of each check, as `run_suite` does."""
        number, self._proxy.keeps_calls = 0, record
        for test in self.tests:
            self._checks = [Check(self._proxy) for _ in test.lines]
            end, lost = Check(self._proxy), False
            try:
                self._collector.run(test)
                end.record(None)
            except CandidateLostError:
                lost = True
            except BaseException as error:  # the exception is how the test fails
                end.record(None if _is_skip(error) else error)
            for check in [*self._checks, *[end] * test.has_end_check]:
                if check.failure is None and not check.has_passed and end.failure is not None:
                    check.failure, check.lines = end.failure, end.lines
                if record:
                    yield from (["call", number, call] for call in check.calls)
                elif check.failure is not None:
                    yield [number, *check.failure, sorted(check.lines)]
                elif check.has_passed or not lost:
                    yield [number, "value", PASSED, "", sorted(check.lines)]
                number += 1
            if lost:
                return

    def _check(self, number: int) -> Check:
        return self._checks[number]


def _is_skip(error: BaseException) -> bool:
    """Whether the test skips itself; a candidate that raises the same exception fails."""
    return type(error).__name__ in _SKIPPED and not is_raised_by_candidate(error)


def _register(name: str, module: ModuleType) -> None:
    """Let tests import *module* as *name*, which may be a dotted name."""
    package, _, last = name.rpartition(".")
    if package:
        if package not in sys.modules:
            made = ModuleType(package)
            made.__path__ = []  # so that modules of its own can be imported
            _register(package, made)
        setattr(sys.modules[package], last, module)
    sys.modules[name] = module


def _execute(name: str, source: str, known: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Run a module of the tests, which others may import from then on; return its namespace."""
    module = sys.modules[name] = ModuleType(name)
    vars(module).update({"__file__": f"{name}.py", **(known or {})})
    code = compile(source, f"<{name}>", "exec", dont_inherit=True)
    exec(code, vars(module))  # noqa: S102 - the caller's tests, in the sandbox
    return vars(module)
