"""Copies of a program's variables, made each time that its run reaches a statement."""

from __future__ import annotations

import builtins
import io
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from .in_process_candidate import EndlessError, InProcessCandidate

VISIT_NAME = "__visit__"
"""Builtin that the instrumented program calls with the number of a place."""

MAX_BYTES = 20_000
"""Size of a copy beyond which it is not made."""

MAX_VISITS = 6000
MAX_TOTAL_BYTES = 1 << 23
_ALL_OF_THE_FIRST = 20  # visits of a place in a check; later ones are kept if a power of two
_NOT_COPIED = (FunctionType, BuiltinFunctionType, ModuleType, type)
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class TooLargeError(ValueError):
    """A copy would be larger than `MAX_BYTES`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """Variables at one moment.

    Attributes:
        place: Number of the place.
        data: Copy of the variables, pickled in this process for this process.
        shared: Objects in it that are not copied, by ``id``.
        names: Names of the variables.
        missing: Names of those that cannot be copied.
    """

    place: int
    data: bytes
    shared: Mapping[int, object]
    names: frozenset[str]
    missing: frozenset[str]

    def variables(self) -> dict[str, Any]:
        """Return new objects in each call."""
        variables: dict[str, Any] = _Reader(io.BytesIO(self.data), self.shared).load()
        return variables


class Visits(InProcessCandidate):
    """The candidate in the process of its tests, watched for visits instead of lines.

    Attributes:
        all: Visits that were kept; two with the same variables are one.
        namespace: Globals of the program; empty before the first visit.
    """

    def __init__(self) -> None:
        super().__init__(False)
        self.all: list[Visit] = []
        self.namespace: dict[str, Any] = {}
        self._globals: dict[int, object] = {}
        self._known: dict[tuple[object, ...], int] = {}
        self._counts: dict[int, int] = {}
        self._of_check: set[int] = set()
        self._bytes = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the visits of programs that run in the block."""
        setattr(builtins, VISIT_NAME, self._visit)
        try:
            yield
        finally:
            setattr(builtins, VISIT_NAME, _ignore)

    def take_covered_lines(self) -> set[int]:
        """Return the numbers of the visits since the last call, from 1, and forget them.

        ``-1 - place`` stands for visits of a place that were not kept.
        """
        numbers = set(self._of_check)
        self._of_check.clear()
        self._counts.clear()
        return numbers

    def _visit(self, place: int) -> bool:
        """Keep a copy of the caller's variables; return False."""
        count = self._counts[place] = self._counts.get(place, 0) + 1
        is_skipped = count > _ALL_OF_THE_FIRST and count & (count - 1)
        if is_skipped or len(self.all) >= MAX_VISITS or self._bytes > MAX_TOTAL_BYTES:
            self._of_check.add(-1 - place)
            return False
        frame = sys._getframe(1)
        if not self.namespace:
            self.namespace = frame.f_globals
            values = list(self.namespace.values())
            self._globals = {id(value): value for value in values if not isinstance(value, _PLAIN)}
        self._of_check.add(self._keep(place, dict(frame.f_locals)))
        return False

    def _keep(self, place: int, variables: dict[str, object]) -> int:
        """Return the number of the visit; ``-1 - place`` if it is too large."""
        missing: set[str] = set()
        copy = self._copy(variables)
        if copy is None:
            missing = {name for name, value in variables.items() if self._copy(value) is None}
            kept = {name: value for name, value in variables.items() if name not in missing}
            copy = self._copy(kept)
        if copy is None:
            return -1 - place
        data, shared = copy
        key = place, data, tuple(shared), frozenset(missing)
        if key not in self._known:
            visit = Visit(
                place=place,
                data=data,
                shared=shared,
                names=frozenset(variables),
                missing=frozenset(missing),
            )
            self.all.append(visit)
            self._bytes += len(data)
            self._known[key] = len(self.all)
        return self._known[key]

    def _copy(self, value: object) -> tuple[bytes, dict[int, object]] | None:
        """Return a copy, and what it shares; None if it cannot be copied or is too large."""
        shared: dict[int, object] = {}
        file = _Limited()
        try:
            _Writer(file, shared, self._globals).dump(value)
        except EndlessError:
            raise
        except BaseException:  # what a class does to be copied may raise anything
            return None
        return file.getvalue(), shared


class _Limited(io.BytesIO):
    """Refuses more than `MAX_BYTES`."""

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        if self.tell() + len(data) > MAX_BYTES:
            raise TooLargeError
        return super().write(data)


class _Writer(pickle.Pickler):
    """Pickles all but functions, classes, modules and what the program's globals are."""

    def __init__(
        self, file: _Limited, shared: dict[int, object], known: Mapping[int, object]
    ) -> None:
        super().__init__(file, 5)
        self._shared, self._known_globals = shared, known

    def persistent_id(self, value: object) -> int | None:
        """Return the ``id`` of what is not copied."""
        if isinstance(value, _NOT_COPIED) or id(value) in self._known_globals:
            self._shared[id(value)] = value
            return id(value)
        return None


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Mapping[int, object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, number: Any) -> object:  # noqa: ANN401 - as in its base
        """Return the object that was not copied."""
        return self._shared[number]


def _ignore(_: int) -> bool:
    return False
