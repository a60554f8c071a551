"""The examiner's side: a test module, in a process of its own that no candidate ever enters.

It holds the program's module as it was given, with the function under repair replaced by a call
into the candidate's process. So a candidate can change its own answers and nothing else: neither
the tests, nor what they expect, nor what is reported.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import ModuleType
from typing import Any, TypedDict

from .check import HELD, Check
from .stand_in import CandidateLostError, StandIn
from .wire import Wire, make_module

CHECK_NAME = "__check__"


class ExamRequest(TypedDict):
    """A prepared test module: see `agents.se_darwin.sandbox.exam`."""

    program: str
    names: list[str]
    tests: str
    asserts: dict[str, list[int]]
    ends: list[str]


class ExamError(ValueError):
    """The test module is not one that can be run here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Test:
    """One call of a test function: its asserts' *lines*, and whether its end is a check too."""

    name: str
    function: Callable[..., object]
    keywords: Mapping[str, object]
    lines: list[int]
    ends: bool

    @property
    def checks(self) -> list[str]:
        """Their names."""
        return [*(f"{self.name}, line {line}" for line in self.lines), *[self.name] * self.ends]


def examination(
    exam: ExamRequest, function: str, asked: int, answers: int, *, collect: bool
) -> Iterator[list[object]]:
    """Run *exam*, or with *collect* say what is in it: ``["checks", names]`` or a problem.

    Args:
        exam: The test module.
        function: The function under repair.
        asked, answers: Descriptors to and from the candidate.
        collect: Whether to leave it at that.

    Yields:
        ``[check, kind, text, wanted, lines run]``; nothing after the candidate is lost.
    """
    try:
        examiner = Examiner(exam, function, asked, answers)
    except ExamError as error:
        yield ["problem", str(error)]
    except BaseException as error:  # whatever the module or its tests raise on import
        hint = " (the sandbox opens no files)" if isinstance(error, OSError) else ""
        raised = f"{type(error).__name__}: {error}{hint}"
        yield ["problem", f"importing the program and its tests raised {raised}"]
    else:
        if collect and not examiner.tests:
            yield ["problem", f"all tests of {function} are skipped, or have no parameters"]
        elif collect:
            yield ["checks", [name for test in examiner.tests for name in test.checks]]
        else:
            yield from examiner.run()


class Examiner:
    """Collects a test module and runs it against one candidate.

    Args:
        exam: The test module.
        function: The function under repair.
        asked, answers: Descriptors to and from the candidate.

    Raises:
        ExamError: It cannot be run here.
    """

    def __init__(self, exam: ExamRequest, function: str, asked: int, answers: int) -> None:
        name, *others = exam["names"]
        module = make_module(name, exam["program"], "<program>")
        self._stand_in = StandIn(function, Wire(module), asked, answers)
        setattr(module, function, self._stand_in)
        for other in others:
            _register(other, module)
        self._checks: list[Check] = []
        namespace: dict[str, Any] = {
            "__name__": "tests",
            "__file__": "tests.py",
            CHECK_NAME: self._check,
        }
        code = compile(exam["tests"], "<tests>", "exec", dont_inherit=True)
        exec(code, namespace)  # noqa: S102 - the caller's tests, in the jail
        marks = _as_list(namespace.get("pytestmark", []))
        self.tests = [
            test
            for name, lines in exam["asserts"].items()
            for test in _collect(name, namespace[name], marks, lines, name in exam["ends"])
        ]

    def run(self) -> Iterator[list[object]]:
        """Yield what became of each check, as `examination` does."""
        number = 0
        for test in self.tests:
            self._checks = [Check(self._stand_in) for _ in test.lines]
            end, lost = Check(self._stand_in), False
            try:
                test.function(**test.keywords)
                end.made = True
            except CandidateLostError:
                lost = True
            except BaseException as error:  # whatever a test raises is how it fails
                end.note(error)
            for check in [*self._checks, *[end] * test.ends]:
                if check.failure is None and not check.made and end.failure is not None:
                    check.failure, check.lines = end.failure, end.lines
                if check.failure is not None:
                    yield [number, *check.failure, sorted(check.lines)]
                elif check.made or not lost:
                    yield [number, "value", HELD, "", sorted(check.lines)]
                number += 1
            if lost:
                return

    def _check(self, number: int) -> Check:
        return self._checks[number]


def _register(name: str, module: ModuleType) -> None:
    """Let tests import *module* as *name*, which may lie in packages."""
    package, _, last = name.rpartition(".")
    if package:
        if package not in sys.modules:
            _register(package, ModuleType(package))
        setattr(sys.modules[package], last, module)
    sys.modules[name] = module


def _as_list(marks: Any) -> list[Any]:  # noqa: ANN401 - pytest's own
    return list(marks) if isinstance(marks, list | tuple) else [marks]


def _collect(
    name: str, function: Callable[..., object], marks: list[Any], lines: list[int], ends: bool
) -> Iterator[_Test]:
    """The calls of one test function: one, or as many as it is parametrized with.

    Args:
        name, function: The test.
        marks: Those of its module.
        lines: Of its asserts.
        ends: Whether its end is a check.
    """
    if inspect.isgeneratorfunction(function):
        raise ExamError(f"{name} has a `yield`: called, it runs nothing; take that out of it")
    marks = [*marks, *getattr(function, "pytestmark", [])]
    if any(mark.name == "skip" for mark in marks):
        return
    for mark in marks:
        if mark.name != "parametrize":
            raise ExamError(f"{name} is marked {mark.name!r}; of marks only parametrize and skip")
    rows: list[list[dict[str, object]]] = [list(_rows(*mark.args[:2])) for mark in marks]
    for number, chosen in enumerate(product(*rows)):
        keywords = {key: value for row in chosen for key, value in row.items()}
        missing = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty and parameter.name not in keywords
        ]
        if missing:
            raise ExamError(
                f"{name} needs {', '.join(missing)}: fixtures are not supported; "
                "make it in the test"
            )
        numbered = f"{name}[{number}]" if marks else name
        yield _Test(name=numbered, function=function, keywords=keywords, lines=lines, ends=ends)


def _rows(names: Any, values: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401 - pytest's own
    keys = [key.strip() for key in names.split(",")] if isinstance(names, str) else list(names)
    for value in values:
        row = value if len(keys) > 1 else (value,)
        if type(value).__name__ == "ParameterSet":  # made by pytest.param
            row = value.values
        yield dict(zip(keys, row, strict=True))
