"""Run the caller's test module against a candidate, in a process of its own or in the candidate's.

In a process of its own it holds the program's module as given, with a proxy in place of the
function under repair. So a candidate can change its own answers and nothing else: neither the
tests, nor what they expect, nor what is reported. In the candidate's process tests run as pytest
runs them: faster, and with arguments of any kind.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import TypedDict

from .check import PASSED, Check
from .collector import Collector, Test
from .failure_place import failure_place
from .fixtures import Fixtures, UnsupportedTestError
from .function_proxy import CandidateLostError, FunctionProxy
from .given_modules import (
    GivenModules,
    MissingModules,
    compile_module,
    file_name,
    import_program,
    module_names,
)
from .handled_refusals import refusals
from .in_process_candidate import CANDIDATE_FILE, InProcessCandidate
from .own_ends import own_end, raising_ends
from .place import UnsupportedFunctionError, find_function, replace_function
from .refusal import refusal
from .wire import ProgramNames, Wire

CHECK_NAME = "__check__"
COMPARED_NAME = "__compared__"
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


def run_within(
    suite: SuiteRequest, function: str, source: str, task: str, *, coverage: bool
) -> Iterator[list[object]]:
    """Run *suite* in this process with *source* as its program.

    Args:
        suite: The test module.
        function: Name of the function under repair.
        source: Program to run.
        task: See `_run`.
        coverage: Whether to see which lines run.

    Yields:
        See `_run`.
    """

    def open_runner() -> SuiteRunner:
        import_program(suite["module"], source, CANDIDATE_FILE, suite["own_modules"])
        candidate = InProcessCandidate(coverage, suite["module"], suite["program"])
        return SuiteRunner(suite, candidate)

    return _run(open_runner, function, task)


def run_against(
    suite: SuiteRequest, function: str, pipes: tuple[int, int], task: str
) -> Iterator[list[object]]:
    """Run *suite* against a candidate in another process.

    Args:
        suite: The test module.
        function: Name of the function under repair.
        pipes: Descriptors to the candidate and from it.
        task: See `_run`.

    Yields:
        See `_run`.
    """

    def open_runner() -> SuiteRunner:
        own_modules = suite["own_modules"]
        module = import_program(suite["module"], suite["program"], "<program>", own_modules)
        others = module_names(own_modules)
        proxy = FunctionProxy(
            function,
            Wire(ProgramNames(module, others)),
            *pipes,
            is_coroutine=inspect.iscoroutinefunction(find_function(module, function)),
        )
        loaded = [sys.modules[name] for name in others if name in sys.modules]
        replace_function(module, function, proxy, loaded)
        return SuiteRunner(suite, proxy)

    return _run(open_runner, function, task)


def _run(
    open_runner: Callable[[], SuiteRunner], function: str, task: str
) -> Iterator[list[object]]:
    """Run a suite, or list it: ``["checks", names, left out]`` or a problem.

    Args:
        open_runner: Imports the program and its tests.
        function: Name of the function under repair.
        task: ``run``; ``collect`` to list the checks without running them; ``record`` to run and
            list the calls of the function; ``watch`` to run and list the tests that no program can
            pass.

    Yields:
        ``[check, kind, text, expected, lines run]``; nothing after the candidate is lost; and
        ``["refused", test, why]`` if the sandbox does not allow what a test needs, and
        ``["missing", names]`` of modules that nothing has imported. To record,
        ``["call", check, call]``. To watch, what `SuiteRunner.watch` yields.
    """
    missing = MissingModules()
    sys.meta_path.insert(0, missing)
    with raising_ends() if task == "watch" else nullcontext():
        yield from _listed(open_runner, function, task)
    if task != "record" and missing.names:
        yield ["missing", missing.names]


def _listed(
    open_runner: Callable[[], SuiteRunner], function: str, task: str
) -> Iterator[list[object]]:
    """Do the *task* of `_run`."""
    try:
        runner = open_runner()
    except UnsupportedFunctionError as error:
        yield ["problem", str(error)]
    except BaseException as error:  # the module or its tests may raise anything on import
        if why := refusal(error):
            yield ["problem", f"importing the program and its tests {why}"]
            return
        raised = f"{type(error).__name__}: {error}"
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
            yield from runner.watch() if task == "watch" else runner.run(record=task == "record")


class SuiteRunner:
    """Collects a test module and runs it against one candidate.

    Args:
        suite: The test module; its program is imported already.
        candidate: What the tests call.

    Attributes:
        tests: Calls of tests to run.
        left_out: Why a test cannot be run, for each such test.
    """

    def __init__(self, suite: SuiteRequest, candidate: FunctionProxy | InProcessCandidate) -> None:
        self._candidate = candidate
        for alias, name in suite["aliases"].items():
            _register(alias, importlib.import_module(name))
        self._checks: list[Check] = []
        self._sources = {file_name(name): source for name, source in suite["helpers"].items()}
        self._sources[_test_file(_TESTS_NAME)] = suite["tests"]
        self.left_out: list[str] = []
        # In helpers, too: test classes may inherit their tests.
        known = {CHECK_NAME: self._check, COMPARED_NAME: self._compared}
        sys.meta_path.append(GivenModules(suite["helpers"], known=known))
        conftests = [vars(_execute("conftest", source, known)) for source in suite["conftests"]]
        tests = _execute(_TESTS_NAME, suite["tests"], known)
        self._collector = Collector(tests, Fixtures([*conftests, vars(tests)]))
        self.tests: list[Test] = []
        for name, lines in suite["assert_lines"].items():
            try:
                self.tests += self._collector.collect(name, lines, name in suite["end_checks"])
            except UnsupportedTestError as error:
                self.left_out.append(str(error))

    def run(self, *, record: bool = False) -> Iterator[list[object]]:
        """Yield the outcome, or with *record* the calls, of each check, as `run_within` does."""
        number, self._candidate.keeps_calls = 0, record
        for test in self.tests:
            self._checks = [Check(self._candidate) for _ in test.lines]
            end, lost = Check(self._candidate), False
            try:
                with self._candidate.watched():
                    self._collector.run(test)
                end.record(None)
            except CandidateLostError:
                lost = True
            except BaseException as error:  # the exception is how the test fails
                end.record(None if self._is_skip(error) else error)
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
            yield from self._refused(test, end)
            if lost:
                return

    def watch(self) -> Iterator[list[object]]:
        """Yield tests that fail, and may fail with every program.

        Yields:
            ``["ends", test, why, ""]`` if the test itself ends the process or its own run;
            ``["raises", test, where, ""]`` if it failed outside of all checks; *where* is empty if
            that is not in the tests;
            ``["handled", test, why, file]`` if it, or the program, handled the error with which the
            sandbox refused something: a *file*, or anything else if that is empty.
        """
        for test in self.tests:
            self._checks = [Check(self._candidate) for _ in test.lines]
            is_failed = False
            try:
                with self._candidate.watched(), refusals() as refused:
                    self._collector.run(test)
            except BaseException as error:  # the exception is how the test fails
                is_failed = not self._is_skip(error)
                if how := own_end(error, self._sources):
                    yield ["ends", test.function, how, ""]
                elif is_failed and not any(check.failure for check in self._checks):
                    yield ["raises", test.function, failure_place(error, self._sources), ""]
            if is_failed or any(check.failure for check in self._checks):
                for why, file in refused.items():
                    handled = f"{why} (the error is handled there)"
                    yield ["handled", test.function, handled, file]

    def _refused(self, test: Test, end: Check) -> Iterator[list[object]]:
        for check in [*self._checks, end]:
            if check.refusal:
                yield ["refused", test.function, check.refusal]

    def _check(self, number: int) -> Check:
        return self._checks[number]

    def _compared(self, value: object) -> object:
        """Return *value*, which an assert compares.

        Raises:
            AssertionError: A class that the candidate has added would decide the comparison.
        """
        if name := self._candidate.own_equality(value):
            raise AssertionError(f"a {name} has comparisons of its own")
        return value

    def _is_skip(self, error: BaseException) -> bool:
        """Whether the test skips itself; a candidate that raises the same exception fails."""
        return type(error).__name__ in _SKIPPED and not self._candidate.has_raised(error)


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


def _execute(name: str, source: str, known: Mapping[str, object] | None = None) -> ModuleType:
    """Run a module of the tests, which others may import from then on, and return it."""
    module = sys.modules[name] = ModuleType(name)
    file = _test_file(name)
    vars(module).update({"__file__": file, **(known or {})})
    exec(compile_module(source, file), vars(module))  # noqa: S102 - tests, in the sandbox
    return module


def _test_file(name: str) -> str:
    """``__file__`` of the test module or of a conftest file."""
    return file_name(f"tests/{name}")
