"""Values whose own ``==``, ``in`` or ``<`` decides a check: a candidate may not bring its own."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from .object_fields import fields_of

_MOST_VALUES = 10_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code has made
_METHODS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")


def own_equality(values: Iterable[object], module: str, file: str, given: str) -> str | None:
    """Return the name of a class in *values* whose comparison a candidate has defined, or None.

    Args:
        values: Values that were compared; also what they contain is looked at.
        module: Name of the candidate's module.
        file: Name of its file.
        given: Source of the program as given, whose classes may define theirs.
    """
    pending, seen = list(values), set[int]()
    while pending and len(seen) < _MOST_VALUES:
        value = pending.pop()
        kind = type(value)
        if kind in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        for owner in kind.__mro__:
            if _is_of(owner, module, file) and owner.__name__ not in _classes(given):
                return owner.__name__
        with suppress(Exception):  # what an object's own attributes raise
            pending += [part for part in _parts(value) if type(part) not in _PLAIN]
    return None


def _is_of(owner: type, module: str, file: str) -> bool:
    """Whether *module*, or code of its *file*, has made *owner* with a comparison of its own."""
    if not owner.__flags__ & _HEAP_TYPE:
        return False
    own = [vars(owner)[method] for method in _METHODS if method in vars(owner)]
    codes = (getattr(each, "__code__", None) for each in own)
    is_in_file = any(getattr(code, "co_filename", "") == file for code in codes)
    return is_in_file or bool(own and owner.__module__ == module)


def _parts(value: Any) -> Iterator[object]:  # noqa: ANN401 - any value
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif not isinstance(value, type):
        yield from fields_of(value).values()


@lru_cache(maxsize=1)
def _classes(source: str) -> set[str]:
    """Names of all classes that *source* defines."""
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}
