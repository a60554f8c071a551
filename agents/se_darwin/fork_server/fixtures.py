"""Fixtures of pytest, without pytest's own machinery, which needs files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

from .builtin_fixtures import BUILTIN, REFUSED

_REQUEST = "request"


class UnsupportedTestError(ValueError):
    """The test module uses something that the sandbox does not support."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fixture:
    """A fixture; *in_class* if its function takes the instance of the test class."""

    name: str
    function: Callable[..., Any]
    params: tuple[object, ...] | None
    autouse: bool
    is_kept: bool
    in_class: bool

    @property
    def needs(self) -> list[str]:
        """Names of its own parameters."""
        return required_names(self.function, skip_first=self.in_class)


class Fixtures:
    """The fixtures that a test sees.

    Those of a scope other than ``function`` are made once for each of
    the parameters that they depend on; they are not torn down: the process just ends.

    Args:
        namespaces: Where fixtures are defined, the farthest first; a later one replaces an earlier.
    """

    def __init__(self, namespaces: Sequence[Mapping[str, object]]) -> None:
        self._found = {name: _builtin(name, function) for name, function in BUILTIN.items()}
        self._kept: dict[tuple[object, ...], object] = {}
        self._teardown = ExitStack()
        for namespace in namespaces:
            self._add(namespace, in_class=False)

    def of_class(self, test_class: type) -> Fixtures:
        """These fixtures, and those that *test_class* defines; what is kept is shared."""
        inner = Fixtures([])
        inner._found, inner._kept = dict(self._found), self._kept
        for kind in reversed(test_class.__mro__):
            inner._add(vars(kind), in_class=True)
        return inner

    def names_for(self, wanted: Sequence[str], test: str) -> list[str]:
        """Fixtures that a test needs, each after those that it needs itself.

        Args:
            wanted: Those that the test names.
            test: Name of the test.

        Raises:
            UnsupportedTestError: One of them is neither defined in the files of the tests nor one
                of pytest's that the sandbox has.
        """
        ordered: dict[str, None] = {}
        automatic = [each.name for each in self._found.values() if each.autouse]
        for name in [*automatic, *wanted]:
            self._order(name, ordered, (), test)
        return list(ordered)

    def choices(self, names: Sequence[str]) -> Iterator[dict[str, int]]:
        """Every combination of the parameters of the fixtures *names*, as positions."""
        varied = [name for name in names if self._found[name].params is not None]
        counts = [range(len(self._found[name].params or ())) for name in varied]
        for chosen in product(*counts):
            yield dict(zip(varied, chosen, strict=True))

    def make(
        self, names: Sequence[str], chosen: Mapping[str, int], instance: object, stack: ExitStack
    ) -> dict[str, object]:
        """Make the fixtures *names*; *stack* tears down those that are not kept."""
        values: dict[str, object] = {}
        keys: dict[str, tuple[object, ...]] = {}  # fixtures with equal keys have the same value
        for name in names:
            fixture = self._found[name]
            below = [keys[need] for need in fixture.needs if need != _REQUEST]
            key = keys[name] = (fixture.function, chosen.get(name, -1), *below)
            if fixture.is_kept and key in self._kept:
                values[name] = self._kept[key]
                continue
            given = {need: values[need] for need in fixture.needs if need != _REQUEST}
            if _REQUEST in fixture.needs:
                param = None if fixture.params is None else fixture.params[chosen[name]]
                given[_REQUEST] = SimpleNamespace(param=param, fixturename=name)
            first = [instance] if fixture.in_class else []
            made = fixture.function(*first, **given)
            if inspect.isgeneratorfunction(fixture.function):
                ending = self._teardown if fixture.is_kept else stack
                ending.callback(next, made, None)
                made = next(made)
            values[name] = made
            if fixture.is_kept:
                self._kept[key] = made
        return values

    def _order(
        self, name: str, ordered: dict[str, None], within: tuple[str, ...], test: str
    ) -> None:
        if name in ordered:
            return
        if name not in self._found or name in within:
            known = ", ".join(BUILTIN)
            reason = REFUSED.get(name) or (
                f"only {known} and fixtures that the tests' own file, class or conftest.py defines "
                "can be used; create the value in the test"
            )
            raise UnsupportedTestError(f"{test} needs {name}: {reason}")
        for need in self._found[name].needs:
            if need != _REQUEST:
                self._order(need, ordered, (*within, name), test)
        ordered[name] = None

    def _add(self, namespace: Mapping[str, object], *, in_class: bool) -> None:
        for key, value in list(namespace.items()):
            marker = getattr(value, "_fixture_function_marker", None)
            if type(marker).__name__ != "FixtureFunctionMarker":
                marker = getattr(value, "_pytestfixturefunction", None)  # before pytest 8.4
            if type(marker).__name__ != "FixtureFunctionMarker":
                continue
            name = getattr(marker, "name", None) or key
            params = getattr(marker, "params", None)
            self._found[name] = _Fixture(
                name=name,
                function=_wrapped(value),
                params=None if params is None else tuple(map(_parameter, params)),
                autouse=bool(getattr(marker, "autouse", False)),
                is_kept=getattr(marker, "scope", "function") != "function",
                in_class=in_class,
            )


def _builtin(name: str, function: Callable[[], object]) -> _Fixture:
    """A fixture of pytest itself."""
    return _Fixture(
        name=name, function=function, params=None, autouse=False, is_kept=False, in_class=False
    )


def required_names(function: Callable[..., object], *, skip_first: bool = False) -> list[str]:
    """Parameters of *function* without a default; *skip_first* for ``self``."""
    parameters = list(inspect.signature(function).parameters.values())[skip_first:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name for each in parameters if each.default is each.empty and each.kind not in variable
    ]


def _wrapped(fixture: Any) -> Callable[..., Any]:  # noqa: ANN401 - pytest's own
    if hasattr(fixture, "_get_wrapped_function"):
        function: Callable[..., Any] = fixture._get_wrapped_function()
        return function
    wrapped: Callable[..., Any] = fixture.__pytest_wrapped__.obj
    return wrapped


def _parameter(value: Any) -> object:  # noqa: ANN401 - pytest's own
    if type(value).__name__ == "ParameterSet":  # made by pytest.param
        return value.values[0]
    return value
