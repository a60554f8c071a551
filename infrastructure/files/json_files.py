"""JSON files: replaced atomically, limited in size and checked against a model when read.

Any parser reads what `write_json` writes: infinities and NaN are ``inf``, ``-inf`` and ``nan``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from infrastructure.files.atomic import read_limited, write_atomically

Model = TypeVar("Model", bound=BaseModel)


class JsonFileError(ValueError):
    """The content of a JSON file cannot be used.

    Args:
        path: The file.
        problem: What is wrong with it, with the name of the field.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}")


def write_model(path: Path, model: BaseModel, *, indent: int | None = None) -> None:
    """Replace *path* by *model* as JSON, atomically.

    Raises:
        OSError: Writing failed; *path* is unchanged.
    """
    write_atomically(path, model.model_dump_json(indent=indent))


def read_json(path: Path, *, limit: int, allow_nan: bool = False) -> object:
    """The JSON in the regular file *path* of at most *limit* bytes.

    Args:
        allow_nan: Whether to read ``NaN`` and ``Infinity``, which Python writes and JSON lacks.

    Raises:
        OSError: The file cannot be read, or is larger.
        JsonFileError: It is not JSON.
    """
    content = read_limited(path, limit)
    try:
        return json.loads(content, parse_constant=float if allow_nan else _refuse_constant)
    except (ValueError, RecursionError) as error:
        raise JsonFileError(path, f"is not JSON ({error})") from None


def read_model(path: Path, kind: type[Model], *, limit: int) -> Model:
    """The *kind* of model in the regular file *path* of at most *limit* bytes.

    Raises:
        OSError: The file cannot be read, or is larger.
        JsonFileError: It is not JSON, or not such a model; names the first wrong field.
    """
    content = read_limited(path, limit)
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise JsonFileError(path, first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """The first wrong field, and what is wrong with it; without its value, which may be secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else first["msg"]


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
