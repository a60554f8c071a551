"""Encoding of values between the suite runner's process and the candidate's: plain data, no code.

Not pickle: a candidate writes these bytes, and they must not be able to change what the suite
runner's own classes do.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import islice
from types import ModuleType
from typing import Any

from .canonical import MAX_DEPTH, MAX_ITEMS

_BY_TEXT: dict[type, Callable[[Any], str]] = {float: float.hex, complex: repr, Decimal: str}
_BY_TEXT |= {bytes: bytes.hex, bytearray: bytearray.hex}
_FROM_TEXT: dict[str, Callable[[str], object]] = {
    "float": float.fromhex,
    "complex": complex,
    "Decimal": Decimal,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
}
_BY_PARTS: dict[type, Callable[[Any], Any]] = {
    list: list,
    tuple: list,
    set: list,
    frozenset: list,
    dict: lambda value: list(map(list, value.items())),
    OrderedDict: lambda value: list(map(list, value.items())),
    Counter: lambda value: list(map(list, value.items())),
    deque: list,
}
_FROM_PARTS = {kind.__name__: kind for kind in _BY_PARTS} | {"Counter": lambda p: Counter(dict(p))}
_BY_ARGUMENTS: dict[type, Callable[[Any], list[object]]] = {
    kind: lambda value: list(value.__reduce_ex__(4)[1])
    for kind in (range, Fraction, date, datetime, time, timedelta, timezone)
}
_FROM_ARGUMENTS = {kind.__name__: kind for kind in _BY_ARGUMENTS}

Encoded = None | bool | int | str | list[Any]


class UnsendableError(TypeError):
    """A value that cannot be passed between two processes.

    Args:
        value: The value.
    """

    def __init__(self, value: object) -> None:
        super().__init__(f"a {type(value).__name__} is not plain data")


class Wire:
    """Encodes and decodes values of builtin types, a few library types, and one module's classes.

    Objects of classes that the module only imports are refused: the program does not define their
    equality, and some library classes equal anything. Members of an imported enumeration pass,
    because decoding looks them up and creates nothing.

    Args:
        module: The program's module in this process; it resolves class names.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def encode(self, value: object, depth: int = 0) -> Encoded:
        """Return *value* as something that `json` can write.

        Raises:
            UnsendableError: *value* contains something that is not plain data.
        """
        kind = type(value)
        if depth > MAX_DEPTH:
            raise UnsendableError(value)
        if value is None or kind in (bool, int, str):
            return value  # type: ignore[return-value]  # the types were just checked
        if kind in _BY_TEXT:
            return [kind.__name__, _BY_TEXT[kind](value)]
        if kind in _BY_PARTS:
            return [kind.__name__, self._each(_BY_PARTS[kind](value), depth)]
        if kind in _BY_ARGUMENTS:
            return [kind.__name__, self._each(_BY_ARGUMENTS[kind](value), depth)]
        if isinstance(value, Iterator):
            return ["iterator", self._each(list(islice(value, MAX_ITEMS)), depth)]
        return self._instance(value, kind, depth)

    def decode(self, encoded: Encoded) -> Any:  # noqa: ANN401 - any value at all
        """Return the value that `encode` encoded.

        Raises:
            ValueError, TypeError, LookupError: *encoded* was not made by `encode`.
        """
        if not isinstance(encoded, list):
            return encoded
        tag, *rest = encoded
        if tag in _FROM_TEXT:
            return _FROM_TEXT[tag](rest[0])
        if tag == "instance":
            return self._rebuild(*rest)
        parts = [self.decode(part) for part in rest[0]]
        if tag == "iterator":
            return iter(parts)
        if tag in _FROM_ARGUMENTS:
            return _FROM_ARGUMENTS[tag](*parts)
        return _FROM_PARTS[tag](parts)

    def encode_error(self, error: BaseException) -> list[Any]:
        """Return class and arguments of *error*; drop the arguments if they are not plain data."""
        try:
            arguments = self.encode(error.args)
        except UnsendableError:
            arguments = self.encode(())
        return [type(error).__module__, type(error).__qualname__, arguments]

    def decode_error(self, module: str, name: str, arguments: Encoded) -> BaseException:
        """Return an exception of the named class, or a RuntimeError if there is no such class."""
        kind = getattr(sys.modules.get(module), name, None)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            kind = RuntimeError
        error = kind.__new__(kind)
        error.args = self.decode(arguments)
        return error

    def _each(self, parts: list[object], depth: int) -> list[Any]:
        return [self.encode(part, depth + 1) for part in parts]

    def _instance(self, value: object, kind: type, depth: int) -> list[Any]:
        if vars(self._module).get(kind.__name__) is not kind:
            raise UnsendableError(value)
        if isinstance(value, Enum):
            return ["instance", kind.__name__, value.name]
        if not self._defines(kind):
            raise UnsendableError(value)
        if isinstance(value, tuple):
            return ["instance", kind.__name__, self._each(list(value), depth)]
        try:
            object.__new__(kind)
            fields = vars(value)
        except TypeError:  # a class built on another type, or without fields by name
            raise UnsendableError(value) from None
        return ["instance", kind.__name__, self.encode(fields, depth + 1)]

    def _defines(self, kind: type) -> bool:
        return kind.__module__ == self._module.__name__

    def _rebuild(self, name: str, state: Any) -> object:  # noqa: ANN401 - from JSON
        kind = vars(self._module)[name]
        if issubclass(kind, Enum):  # raises TypeError if it is not a class
            return kind[state]
        if not self._defines(kind):
            raise LookupError(f"{name} is not a class of this program")
        if issubclass(kind, tuple):
            return tuple.__new__(kind, [self.decode(part) for part in state])
        made = object.__new__(kind)
        vars(made).update(self.decode(state))
        return made


def make_module(name: str, source: str, file: str) -> ModuleType:
    """Run *source* as the module *name* of this process."""
    module = ModuleType(name)
    module.__file__ = f"{name}.py"  # tests may read it; nothing can be opened
    sys.modules[name] = module
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))  # noqa: S102 - in the sandbox
    return module
