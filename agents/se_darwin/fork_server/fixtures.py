"""Fixtures of pytest, without pytest's own machinery, which needs files."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

from .builtin_fixtures import REFUSED, builtin_fixtures
from .candidate import event_loops
from .refusal import NotOfferedError

_REQUEST = "request"


class UnsupportedTestError(ValueError):
    """The test module uses something that the sandbox does not support."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Fixture:
    """A fixture; *in_class* if its function takes the instance of the test class.

    *replaced* is the fixture of the same name that it replaces and may need.
    """

    name: str
    function: Callable[..., Any]
    params: tuple[object, ...] | None
    autouse: bool
    is_kept: bool
    in_class: bool
    replaced: _Fixture | None = None

    @property
    def needs(self) -> list[str]:
        """Names of its own parameters."""
        return required_names(self.function, skip_first=self.in_class)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningTest:
    """A call of a test whose fixtures are made.

    Attributes:
        name: Name of the test.
        fixtures: Names of the fixtures that it needs.
        chosen: Positions of the fixtures' own parameters.
        indirect: Parameters that the test gives to fixtures.
        instance: Object whose method it is, or None.
        stack: Tears down what is not kept.
    """

    name: str
    fixtures: Sequence[str]
    chosen: Mapping[str, int]
    indirect: Mapping[str, object]
    instance: object
    stack: ExitStack


class _Made:
    """The values of the fixtures of one call of a test; each is made when it is first needed."""

    def __init__(
        self,
        fixtures: Mapping[str, _Fixture],
        kept: dict[tuple[object, ...], object],
        teardown: ExitStack,
        test: RunningTest,
    ) -> None:
        self._fixtures, self._kept, self._teardown, self._test = fixtures, kept, teardown, test
        self._values: dict[_Fixture, object] = {}
        self._keys: dict[_Fixture, tuple[object, ...]] = {}  # equal keys, the same value

    def value(self, name: str) -> object:
        """Value of the fixture *name*.

        Raises:
            NotOfferedError: There is none.
        """
        if name not in self._fixtures:
            raise NotOfferedError(f"the fixture {name}")
        return self._value_of(self._fixtures[name])

    def _value_of(self, fixture: _Fixture) -> object:
        if fixture in self._values:
            return self._values[fixture]
        needed = {need: self._need(fixture, need) for need in fixture.needs if need != _REQUEST}
        given = {name: self._value_of(dependency) for name, dependency in needed.items()}
        below = [self._keys[dependency] for dependency in needed.values()]
        key = self._keys[fixture] = (fixture.function, self._param(fixture), *below)
        if fixture.is_kept and key in self._kept:
            self._values[fixture] = self._kept[key]
            return self._kept[key]
        ending = self._teardown if fixture.is_kept else self._test.stack
        if _REQUEST in fixture.needs:
            given[_REQUEST] = self.request(fixture, ending)
        first = [self._test.instance] if fixture.in_class else []
        made = fixture.function(*first, **given)
        if inspect.isgeneratorfunction(fixture.function):
            ending.callback(next, made, None)
            made = next(made)
        elif inspect.isasyncgen(made):
            ending.callback(_finish, made)
            made = event_loops().complete(anext(made))
        elif inspect.iscoroutine(made):
            made = event_loops().complete(made)
        self._values[fixture] = made
        if fixture.is_kept:
            self._kept[key] = made
        return made

    def _need(self, fixture: _Fixture, need: str) -> _Fixture:
        if need == fixture.name and fixture.replaced is not None:
            return fixture.replaced
        if need not in self._fixtures:
            raise NotOfferedError(f"the fixture {need}")
        return self._fixtures[need]

    def _param(self, fixture: _Fixture) -> object:
        """What tells the fixture's parameter from others."""
        if fixture.name in self._test.indirect:
            return "indirect", id(self._test.indirect[fixture.name])
        return self._test.chosen.get(fixture.name, -1)

    def request(
        self, fixture: _Fixture | None = None, ending: ExitStack | None = None
    ) -> FixtureRequest:
        """What ``request`` is in *fixture*, or in the test."""
        test, given = self._test, dict[str, object]()
        if fixture is not None and fixture.name in test.indirect:
            given["param"] = test.indirect[fixture.name]
        elif fixture is not None and fixture.params and fixture.name in test.chosen:
            given["param"] = fixture.params[test.chosen[fixture.name]]
        return FixtureRequest(
            **given,  # without a parameter, `getattr(request, "param", default)` gives the default
            fixturename=fixture.name if fixture else None,
            instance=test.instance,
            cls=None if test.instance is None else type(test.instance),
            node=SimpleNamespace(name=test.name),
            getfixturevalue=self.value,
            addfinalizer=(ending or test.stack).callback,
        )


class FixtureRequest(SimpleNamespace):
    """What ``request`` gives a fixture or a test."""

    def __getattr__(self, name: str) -> object:
        """Refuse what is not offered by name.

        Raises:
            NotOfferedError: Always.
        """
        raise NotOfferedError(f"request.{name}")


class Fixtures:
    """The fixtures that a test sees.

    Those of a scope other than ``function`` are made once for each of
    the parameters that they depend on; they are not torn down: the process just ends.

    Args:
        namespaces: Where fixtures are defined, the farthest first; a later one replaces an earlier.
    """

    def __init__(self, namespaces: Sequence[Mapping[str, object]]) -> None:
        self._fixtures = {
            name: _builtin(name, function) for name, function in builtin_fixtures().items()
        }
        self._kept: dict[tuple[object, ...], object] = {}
        self._teardown = ExitStack()
        for namespace in namespaces:
            self._add(namespace, in_class=False)

    def of_class(self, test_class: type) -> Fixtures:
        """These fixtures, and those that *test_class* defines; what is kept is shared."""
        inner = Fixtures([])
        inner._fixtures, inner._kept = dict(self._fixtures), self._kept
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
        automatic = [fixture.name for fixture in self._fixtures.values() if fixture.autouse]
        for name in [*automatic, *wanted]:
            self._order(name, ordered, (), test)
        return list(ordered)

    def choices(self, names: Sequence[str]) -> Iterator[dict[str, int]]:
        """Every combination of the parameters of the fixtures *names*, as positions."""
        varied = [name for name in names if self._fixtures[name].params is not None]
        counts = [range(len(self._fixtures[name].params or ())) for name in varied]
        for chosen in product(*counts):
            yield dict(zip(varied, chosen, strict=True))

    def make(self, test: RunningTest) -> _Made:
        """Make the fixtures of a test, each after those that it needs."""
        made = _Made(self._fixtures, self._kept, self._teardown, test)
        for name in test.fixtures:
            made.value(name)
        return made

    def _order(
        self, name: str, ordered: dict[str, None], within: tuple[str, ...], test: str
    ) -> None:
        if name in ordered:
            return
        if name not in self._fixtures or name in within:
            known = ", ".join(builtin_fixtures())
            reason = REFUSED.get(name) or (
                f"only {known} and fixtures that the tests' own file, class or conftest.py defines "
                "can be used; create the value in the test"
            )
            raise UnsupportedTestError(f"{test} needs {name}: {reason}")
        fixture: _Fixture | None = self._fixtures[name]
        while fixture is not None:
            for need in fixture.needs:
                if need != _REQUEST and (need != name or fixture.replaced is None):
                    self._order(need, ordered, (*within, name), test)
            fixture = fixture.replaced if name in fixture.needs else None
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
            self._fixtures[name] = _Fixture(
                name=name,
                function=_wrapped(value),
                params=None if params is None else tuple(map(_parameter, params)),
                autouse=bool(getattr(marker, "autouse", False)),
                is_kept=getattr(marker, "scope", "function") != "function",
                in_class=in_class,
                replaced=self._fixtures.get(name),
            )


def _finish(made: AsyncGenerator[object, Any]) -> None:
    """Run an asynchronous fixture to its end."""
    event_loops().complete(anext(made, None))


def _builtin(name: str, function: Callable[[], object]) -> _Fixture:
    """A fixture of pytest itself."""
    return _Fixture(
        name=name, function=function, params=None, autouse=False, is_kept=False, in_class=False
    )


def required_names(function: Callable[..., object], *, skip_first: bool = False) -> list[str]:
    """Parameters of *function* without a default; *skip_first* for ``self``.

    Those to which ``unittest.mock.patch`` gives a value are left out.
    """
    patches = getattr(function, "patchings", ())
    given = sum(not patch.attribute_name and _makes_mock(patch.new) for patch in patches)
    parameters = list(inspect.signature(function).parameters.values())[skip_first + given :]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variable
    ]


def _makes_mock(new: object) -> bool:
    """Whether a patch with that value for ``new`` makes a mock and gives it to the function."""
    return getattr(new, "name", None) == "DEFAULT" and type(new).__name__ == "_SentinelObject"


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
