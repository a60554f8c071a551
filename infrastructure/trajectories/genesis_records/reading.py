"""Reads records that others wrote: one object at a time, with the line it stands on."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

OnSkip = Callable[[Path, int, str], None]
"""Told of what is skipped: file, line (from 1), reason."""

Score = Annotated[float, Field(ge=0.0, le=1.0)]
"""How good Genesis found something, in [0, 1]."""

_MANY_DIGITS = 400

Record = TypeVar("Record", bound=BaseModel)


def read_lines(path: Path, kind: type[Record], on_skip: OnSkip) -> Iterator[Record]:
    """Read a file of one JSON object a line; empty lines and a byte order mark count for nothing.

    Raises:
        OSError: *path* cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield kind.model_validate_json(line)
            except ValidationError as error:
                on_skip(path, number, problem_of(error))


def read_document(path: Path, on_skip: OnSkip) -> object:
    """Read a file that is one JSON value; None, and a report, if it is damaged.

    Raises:
        OSError: *path* cannot be read.
    """
    try:
        document: object = json.loads(path.read_bytes(), parse_int=_number_of)
    except json.JSONDecodeError as error:
        on_skip(path, error.lineno, f"not JSON: {error.msg}")
    except (UnicodeDecodeError, RecursionError) as error:
        on_skip(path, 1, f"not JSON: {error}")
    else:
        return document
    return None


def _number_of(digits: str) -> float:
    """A whole number, or infinity where Python would refuse to read so many digits."""
    return int(digits) if len(digits) < _MANY_DIGITS else float(digits)


def problem_of(error: ValidationError) -> str:
    """The first thing wrong, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def distinct_state(*texts: str) -> str:
    """The group of a record: equal for states that differ in spaces and case only.

    So a state that was recorded often is on one side of the held-out split.
    """
    return " | ".join(" ".join(text.casefold().split()) for text in texts) or "(empty)"
