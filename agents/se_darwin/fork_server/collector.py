"""Finds the tests of a module and runs each of them, as pytest would, but without files."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

from .candidate import event_loops
from .fixtures import Fixtures, RunningTest, UnsupportedTestError, required_names
from .hypothesis_settings import limit_examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """One call of a test.

    Attributes:
        name: Name of the test, with a number if it is called several times.
        function: Name without that number: a function, or ``Class.method``.
        lines: Lines of its asserts that are checks.
        has_end_check: Whether its end is a check.
        test_class: Class of the method, or None.
        method: Name of the function or method.
        row: Parameters.
        fixtures: Fixtures that it sees.
        made: Names of the fixtures to make.
        chosen: Positions of the fixtures' own parameters.
        indirect: Parameters that it gives to fixtures.
        taken: Names of the fixtures that it takes as arguments.
    """

    name: str
    function: str
    lines: list[int]
    has_end_check: bool
    test_class: Any
    method: str
    row: Mapping[str, object]
    fixtures: Fixtures
    made: Sequence[str]
    chosen: Mapping[str, int]
    indirect: Mapping[str, object]
    taken: Sequence[str]

    @property
    def check_names(self) -> list[str]:
        """Names of its checks, in order."""
        return [
            *(f"{self.name}, line {line}" for line in self.lines),
            *[self.name] * self.has_end_check,
        ]


class Collector:
    """Finds the calls of test functions, with their parameters and fixtures.

    Args:
        module: The test module.
        fixtures: Of the module and its conftest files.
    """

    def __init__(self, module: ModuleType, fixtures: Fixtures) -> None:
        self._module, self._namespace, self._fixtures = module, vars(module), fixtures
        self._marks = _as_list(self._namespace.get("pytestmark", []))
        self._class_fixtures: dict[str, Fixtures] = {}  # by name of the class
        self._begun: dict[object, BaseException | None] = {}  # how setting them up ended

    def collect(self, name: str, lines: list[int], has_end_check: bool) -> Iterator[Test]:
        """Yield the calls of the test *name*: one, or one for each set of parameters.

        Args:
            name: Name of a function, or ``Class.method``.
            lines: Lines of its asserts.
            has_end_check: Whether its end is a check.
        """
        owner, _, method = name.rpartition(".")
        test_class, fixtures, marks = None, self._fixtures, self._marks
        function: Any = self._namespace.get(method)
        if owner:
            classes = self._classes_of(owner)
            test_class, fixtures = classes[-1], self._fixtures_of(owner)
            function = getattr(test_class, method)
            for cls in classes:
                marks = [*marks, *_as_list(getattr(cls, "pytestmark", []))]
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UnsupportedTestError(
                f"{name} contains `yield`, so calling it runs nothing; remove the `yield`"
            )
        limit_examples(function)
        marks = [*marks, *getattr(function, "pytestmark", [])]
        is_unittest = test_class is not None and issubclass(test_class, unittest.TestCase)
        if any(map(_leaves_out, marks)) or _is_skipped(test_class, function):
            return
        if is_unittest and _is_expected_to_fail(test_class, function):
            return
        rows = list(self._parameters(marks))
        indirect = _indirect_names(marks)
        given = rows[0].keys() - indirect if rows else ()
        wanted = [arg for mark in marks if mark.name == "usefixtures" for arg in mark.args]
        required = (
            [] if is_unittest else required_names(function, skip_first=test_class is not None)
        )
        wanted += [fixture for fixture in required if fixture not in given and fixture != "request"]
        names = fixtures.names_for(wanted, name)
        choices = list(fixtures.choices([fixture for fixture in names if fixture not in indirect]))
        is_numbered = len(choices) > 1 or any(mark.name == "parametrize" for mark in marks)
        for number, (row, chosen) in enumerate(product(rows, choices)):
            yield Test(
                name=f"{name}[{number}]" if is_numbered else name,
                function=name,
                lines=lines,
                has_end_check=has_end_check,
                test_class=test_class,
                method=method,
                row={key: value for key, value in row.items() if key not in indirect},
                fixtures=fixtures,
                made=names,
                chosen=chosen,
                indirect={key: value for key, value in row.items() if key in indirect},
                taken=required,
            )

    def _classes_of(self, owner: str) -> list[type]:
        """The class *owner*, ``Class`` or ``Class.Inner``, after those in which it is."""
        classes: list[type] = []
        for name in owner.split("."):
            classes.append(getattr(classes[-1], name) if classes else self._namespace[name])
        return classes

    def _fixtures_of(self, owner: str) -> Fixtures:
        if owner not in self._class_fixtures:
            outer = owner.rpartition(".")[0]
            fixtures = self._fixtures_of(outer) if outer else self._fixtures
            self._class_fixtures[owner] = fixtures.of_class(self._classes_of(owner)[-1])
        return self._class_fixtures[owner]

    def _parameters(self, marks: list[Any]) -> Iterator[dict[str, object]]:
        rows: list[list[dict[str, object]]] = []
        for mark in marks:
            if mark.name == "parametrize":
                given = _arguments(mark)
                rows.append(list(_rows(given["argnames"], given["argvalues"])))
        for chosen in product(*rows):
            yield {key: value for row in chosen for key, value in row.items()}

    def run(self, test: Test) -> None:
        """Run one call of a test, with all that is to be set up before it.

        Raises:
            BaseException: The test, or what is set up or torn down with it, failed.
        """
        with ExitStack() as stack:
            if (loops := event_loops()) is not None:
                stack.callback(loops.end_tasks, loops.tasks())
            module, test_class = self._namespace.get, test.test_class
            self._once(self._module, module("setUpModule") or module("setup_module"))
            if test_class is None:
                instance, call = None, self._namespace[test.method]
                hooks = module("setup_function"), module("teardown_function")
            elif issubclass(test_class, unittest.TestCase):
                self._once(test_class, test_class.setUpClass)
                instance = test_class(test.method)
                call, hooks = getattr(instance, test.method), (instance.setUp, instance.tearDown)
                if hasattr(instance, "asyncSetUp"):
                    call, hooks = _in_its_loop(instance, call, stack)
                stack.callback(instance.doCleanups)
            else:
                self._once(test_class, getattr(test_class, "setup_class", None))
                instance = test_class()
                call, method = getattr(instance, test.method), partial(getattr, instance)
                hooks = method("setup_method", None), method("teardown_method", None)
            set_up, tear_down = hooks
            _call_hook(set_up, call)
            stack.callback(_call_hook, tear_down, call)
            running = RunningTest(
                name=test.name,
                fixtures=test.made,
                chosen=test.chosen,
                indirect=test.indirect,
                instance=instance,
                stack=stack,
            )
            made = test.fixtures.make(running)
            taken = {name: made.value(name) for name in test.taken if name in test.made}
            if "request" in test.taken:
                taken["request"] = made.request()
            result = call(**taken, **test.row)
            if inspect.iscoroutine(result):
                loops.complete(result)

    def _once(self, what: object, hook: Callable[..., object] | None) -> None:
        """Set up the module or a class once; if that failed, all its tests fail with that error."""
        if what not in self._begun:
            self._begun[what] = None
            try:
                _call_hook(hook, what)
            except BaseException as error:
                self._begun[what] = error
                raise
        elif (failed := self._begun[what]) is not None:
            raise failed


def _in_its_loop(
    instance: Any,  # noqa: ANN401 - a `unittest.IsolatedAsyncioTestCase`
    call: Callable[..., object],
    stack: ExitStack,
) -> tuple[Callable[[], object], tuple[Callable[[], object], Callable[[], object]]]:
    """How the class itself calls its method, and what it does before and after, in its own loop."""
    instance._setupAsyncioRunner()
    stack.callback(instance._tearDownAsyncioRunner)
    return partial(instance._callTestMethod, call), (instance._callSetUp, instance._callTearDown)


def _call_hook(hook: Callable[..., object] | None, given: object) -> None:
    """Call a function that sets up or tears down; like pytest, with an argument if it takes one."""
    if hook is not None:
        code = getattr(hook, "__code__", None)  # of what a patch makes, too: it takes none
        takes_one = code is not None and code.co_argcount > inspect.ismethod(hook)
        hook(*[given] * takes_one)


def _leaves_out(mark: Any) -> bool:  # noqa: ANN401 - pytest's own
    """Whether a test with that mark does not run, or is expected to fail."""
    conditions = (*mark.args[:1], mark.kwargs.get("condition", False))
    return mark.name in ("skip", "xfail") or (mark.name == "skipif" and any(conditions))


def _is_skipped(*owners: object) -> bool:
    return any(getattr(owner, "__unittest_skip__", False) for owner in owners)


def _is_expected_to_fail(*owners: object) -> bool:
    """Whether ``unittest.expectedFailure`` decorates a class or its method."""
    return any(getattr(owner, "__unittest_expecting_failure__", False) for owner in owners)


def _as_list(marks: Any) -> list[Any]:  # noqa: ANN401 - pytest's own
    return list(marks) if isinstance(marks, list | tuple) else [marks]


def _arguments(mark: Any) -> dict[str, Any]:  # noqa: ANN401 - pytest's own
    """Arguments of ``parametrize`` by name."""
    names = ("argnames", "argvalues", "indirect")
    return {**dict(zip(names, mark.args, strict=False)), **mark.kwargs}


def _indirect_names(marks: list[Any]) -> set[str]:
    """Names of the fixtures to which the test gives parameters."""
    names: set[str] = set()
    for mark in marks:
        if mark.name == "parametrize" and (indirect := _arguments(mark).get("indirect")):
            names |= set(_names(_arguments(mark)["argnames"]) if indirect is True else indirect)
    return names


def _names(names: Any) -> list[str]:  # noqa: ANN401 - pytest's own
    return [key.strip() for key in names.split(",")] if isinstance(names, str) else list(names)


def _rows(names: Any, values: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401 - pytest's own
    keys = _names(names)
    for value in values:
        row = value if len(keys) > 1 else (value,)
        if type(value).__name__ == "ParameterSet":  # made by pytest.param
            if any(map(_leaves_out, value.marks)):
                continue
            row = value.values
        yield dict(zip(keys, row, strict=True))
