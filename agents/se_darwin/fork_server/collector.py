"""Finds the tests of a module and runs each of them, as pytest would, but without files."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from .fixtures import Fixtures, UnsupportedTestError, required_names


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """One call of a test.

    Attributes:
        name: Name of the test, with a number if it is called several times.
        lines: Lines of its asserts that are checks.
        has_end_check: Whether its end is a check.
        test_class: Class of the method, or None.
        method: Name of the function or method.
        row: Parameters.
        fixtures: Fixtures that it sees.
        made: Names of the fixtures to make.
        chosen: Positions of the fixtures' own parameters.
        taken: Names of the fixtures that it takes as arguments.
    """

    name: str
    lines: list[int]
    has_end_check: bool
    test_class: Any
    method: str
    row: Mapping[str, object]
    fixtures: Fixtures
    made: Sequence[str]
    chosen: Mapping[str, int]
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
        namespace: Of the test module.
        fixtures: Of the module and its conftest files.
    """

    def __init__(self, namespace: Mapping[str, Any], fixtures: Fixtures) -> None:
        self._namespace, self._fixtures = namespace, fixtures
        self._marks = _as_list(namespace.get("pytestmark", []))
        self._classes: dict[str, tuple[type, Fixtures]] = {}
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
            test_class = self._namespace[owner]
            fixtures = self._fixtures_of(owner, test_class)
            function = getattr(test_class, method)
            marks = [*marks, *_as_list(getattr(test_class, "pytestmark", []))]
        if inspect.isgeneratorfunction(function):
            raise UnsupportedTestError(
                f"{name} contains `yield`, so calling it runs nothing; remove the `yield`"
            )
        marks = [*marks, *getattr(function, "pytestmark", [])]
        if any(map(_leaves_out, marks)) or _is_skipped(test_class, function):
            return
        rows = list(self._parameters(name, marks))
        given = rows[0].keys() if rows else ()
        wanted = [arg for mark in marks if mark.name == "usefixtures" for arg in mark.args]
        is_unittest = test_class is not None and issubclass(test_class, unittest.TestCase)
        own = [] if is_unittest else required_names(function, skip_first=test_class is not None)
        wanted += [each for each in own if each not in given and each != "request"]
        names = fixtures.names_for(wanted, name)
        choices = list(fixtures.choices(names))
        is_numbered = len(choices) > 1 or any(mark.name == "parametrize" for mark in marks)
        for number, (row, chosen) in enumerate(product(rows, choices)):
            yield Test(
                name=f"{name}[{number}]" if is_numbered else name,
                lines=lines,
                has_end_check=has_end_check,
                test_class=test_class,
                method=method,
                row=row,
                fixtures=fixtures,
                made=names,
                chosen=chosen,
                taken=own,
            )

    def _fixtures_of(self, owner: str, test_class: type) -> Fixtures:
        if owner not in self._classes:
            self._classes[owner] = (test_class, self._fixtures.of_class(test_class))
        return self._classes[owner][1]

    def _parameters(self, name: str, marks: list[Any]) -> Iterator[dict[str, object]]:
        rows: list[list[dict[str, object]]] = []
        for mark in marks:
            if mark.name == "parametrize":
                if mark.kwargs.get("indirect"):
                    raise UnsupportedTestError(
                        f"{name} is parametrized indirectly, which is not supported; give the "
                        "values to the test, or to the fixture as params"
                    )
                given = dict(zip(("argnames", "argvalues"), mark.args, strict=False)) | mark.kwargs
                rows.append(list(_rows(given["argnames"], given["argvalues"])))
        for chosen in product(*rows):
            yield {key: value for row in chosen for key, value in row.items()}

    def run(self, test: Test) -> None:
        """Run one call of a test, with all that is to be set up before it.

        Raises:
            BaseException: The test, or what is set up or torn down with it, failed.
        """
        with ExitStack() as stack:
            module, test_class = self._namespace.get, test.test_class
            self._once("module", module("setup_module"), module("setUpModule"))
            if test_class is None:
                instance, call = None, self._namespace[test.method]
                hooks = module("setup_function"), module("teardown_function")
            elif issubclass(test_class, unittest.TestCase):
                self._once(test_class, test_class.setUpClass)
                instance = test_class(test.method)
                call, hooks = getattr(instance, test.method), (instance.setUp, instance.tearDown)
                stack.callback(instance.doCleanups)
            else:
                self._once(test_class, getattr(test_class, "setup_class", None))
                instance = test_class()
                call, own = getattr(instance, test.method), partial(getattr, instance)
                hooks = own("setup_method", None), own("teardown_method", None)
            set_up, tear_down = hooks
            _call_hook(set_up, call)
            stack.callback(_call_hook, tear_down, call)
            values = test.fixtures.make(test.made, test.chosen, instance, stack)
            call(**{name: values[name] for name in test.taken if name in values}, **test.row)

    def _once(self, what: object, *hooks: Callable[..., object] | None) -> None:
        """Set up the module or a class once; if that failed, all its tests fail with that error."""
        if what not in self._begun:
            self._begun[what] = None
            try:
                for hook in hooks:
                    _call_hook(hook, what)
            except BaseException as error:
                self._begun[what] = error
                raise
        elif (failed := self._begun[what]) is not None:
            raise failed


def _call_hook(hook: Callable[..., object] | None, given: object) -> None:
    """Call a function that sets up or tears down; pytest lets it take an argument or none."""
    if hook is not None:
        hook(*[given] * len(required_names(hook)))


def _leaves_out(mark: Any) -> bool:  # noqa: ANN401 - pytest's own
    """Whether a test with that mark does not run, or is expected to fail."""
    conditions = (*mark.args[:1], mark.kwargs.get("condition", False))
    return mark.name in ("skip", "xfail") or (mark.name == "skipif" and any(conditions))


def _is_skipped(*owners: object) -> bool:
    return any(getattr(each, "__unittest_skip__", False) for each in owners)


def _as_list(marks: Any) -> list[Any]:  # noqa: ANN401 - pytest's own
    return list(marks) if isinstance(marks, list | tuple) else [marks]


def _rows(names: Any, values: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401 - pytest's own
    keys = [key.strip() for key in names.split(",")] if isinstance(names, str) else list(names)
    for value in values:
        row = value if len(keys) > 1 else (value,)
        if type(value).__name__ == "ParameterSet":  # made by pytest.param
            if any(map(_leaves_out, value.marks)):
                continue
            row = value.values
        yield dict(zip(keys, row, strict=True))
