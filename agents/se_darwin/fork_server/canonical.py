"""Canonical text of values: results leave the sandbox without pickle and are compared outside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

MAX_ITEMS = 2000
MAX_DEPTH = 150
_PLAIN_TYPES = (type(None), bool, int, str, bytes, bytearray, range)
_REPR_MODULES = ("fractions", "decimal", "datetime", "_pydecimal")


class UncomparableError(TypeError):
    """A value has no canonical text.

    Args:
        value: Description of the value.
    """

    def __init__(self, value: str) -> None:
        super().__init__(f"cannot compare {value}; return plain values instead")


def canonical(value: object, depth: int = 0) -> str:
    """Return text that is equal for equal values; no object's own ``__eq__`` takes part.

    Floats keep 12 significant digits, so that the order of additions does not matter and ``2.0``
    equals ``2``; zeros lose their sign. Items of dictionaries and sets are sorted by their text,
    except in an `OrderedDict`, whose order counts. Iterators are consumed up to `MAX_ITEMS` items.

    Raises:
        UncomparableError: *value* contains a type without canonical text, or is nested too
            deeply. An exception raised by an iterator passes through.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES or kind.__module__ in _REPR_MODULES:
        return repr(value)
    if isinstance(value, float):
        return format(value + 0.0, ".12g")  # turns minus zero into zero
    if isinstance(value, complex):
        return repr(value + 0j)
    if depth > MAX_DEPTH:
        raise UncomparableError("a value nested this deeply")
    return _canonical_container(value, kind, depth)


def _canonical_container(value: object, kind: type, depth: int) -> str:
    if isinstance(value, dict):
        pairs = [
            f"{canonical(key, depth + 1)}: {canonical(item, depth + 1)}"
            for key, item in value.items()
        ]
        if not isinstance(value, OrderedDict):
            pairs.sort()
        return _named(kind, dict, f"{{{', '.join(pairs)}}}")
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return _named(kind, tuple, f"({_join(iter(value), depth)}{comma})")
    if isinstance(value, list):
        return _named(kind, list, f"[{_join(iter(value), depth)}]")
    if isinstance(value, (set, frozenset)):
        items = sorted(canonical(item, depth + 1) for item in value)
        return f"set({', '.join(items)})"
    if isinstance(value, Iterator):
        return f"iterator({_join(islice(value, MAX_ITEMS), depth)})"
    raise UncomparableError(f"a {kind.__name__}")


def _join(items: Iterator[object], depth: int) -> str:
    return ", ".join(canonical(item, depth + 1) for item in items)


def _named(kind: type, base: type, text: str) -> str:
    return text if kind is base else f"{kind.__name__}{text}"
