"""JSON that any parser reads: infinities and NaN are the strings ``inf``, ``-inf`` and ``nan``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from infrastructure.files.atomic import write_atomically


def json_text(
    value: object, *, indent: int | None = None, default: Callable[[object], object] | None = None
) -> str:
    """*value* as JSON.

    Args:
        value: Anything of mappings, lists, tuples, text, numbers, booleans and None.
        indent: Spaces a level; None for one line.
        default: Turns other objects into those; None to refuse them.

    Raises:
        TypeError: *value* holds an object that JSON has no form for.
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False, default=default)


def write_json(path: Path, value: object) -> None:
    """Replace *path* by *value* as indented JSON, atomically.

    Raises:
        OSError: Writing failed; *path* is unchanged.
        TypeError: *value* holds an object that JSON has no form for.
    """
    write_atomically(path, json_text(value, indent=2) + "\n")


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
