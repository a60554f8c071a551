"""What the adapters share: reading records with their position, and the targets of a record."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.segments import OnSkip

SUCCESS_SCORE = 0.7
"""Score from which Genesis itself counts a result as a success."""

Score = Annotated[float, Field(ge=0.0, le=1.0)]
"""Genesis' rating of a result, in [0, 1]."""

_MANY_DIGITS = 400


class Record(BaseModel):
    """A JSON object; only the declared fields are read."""

    model_config = ConfigDict(extra="ignore")


AnyRecord = TypeVar("AnyRecord", bound=Record)


def outcome_spec(
    observation: Mapping[str, FieldType], action: Mapping[str, FieldType]
) -> TransitionSpec:
    """Declare the targets that all records have: success and score; see `outcome`."""
    return TransitionSpec(
        observation=observation,
        action=action,
        targets={"success": Discrete(values=("false", "true")), "score": Box()},
        success=("success", "true"),
        improvement="score",
    )


def outcome(score: float, *, success: bool | None = None) -> dict[str, bool | float]:
    """Return the target values of a record; by default the score decides *success*."""
    return {"success": score >= SUCCESS_SCORE if success is None else success, "score": score}


def distinct_state(*texts: str) -> str:
    """Return the group of a record, equal for texts that differ only in spaces and case.

    All records of a repeated state are so on one side of the held-out split.
    """
    return " | ".join(" ".join(text.casefold().split()) for text in texts) or "(empty)"


def read_lines(
    path: Path, decode: Callable[[bytes], Sequence[Transition]], on_skip: OnSkip
) -> Iterator[Transition]:
    """Decode one JSON object per line; skip empty lines and a byte order mark silently.

    Args:
        decode: Function from a line to its transitions; raises ValueError for a damaged line.
        on_skip: Callback for each damaged line: file, line number from 1, reason.

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
                transitions = decode(line)
            except ValueError as error:
                on_skip(path, number, str(error))
                continue
            yield from transitions


def decode_line(line: bytes, kind: type[AnyRecord]) -> AnyRecord:
    """Decode a JSON object.

    Raises:
        ValueError: *line* is not such a record; the message is its first problem, in one line.
    """
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(describe(error)) from None


def read_document(path: Path, on_skip: OnSkip) -> object:
    """Read a file that is one JSON value; report it and return None if it is damaged.

    Raises:
        OSError: *path* cannot be read.
    """
    try:
        document: object = json.loads(path.read_bytes(), parse_int=_parse_int)
    except json.JSONDecodeError as error:
        on_skip(path, error.lineno, f"not JSON: {error.msg}")
    except (UnicodeDecodeError, RecursionError) as error:
        on_skip(path, 1, f"not JSON: {error}")
    else:
        return document
    return None


def _parse_int(digits: str) -> float:
    """Parse an integer; infinity where Python refuses to parse that many digits."""
    return int(digits) if len(digits) < _MANY_DIGITS else float(digits)


def describe(error: ValidationError) -> str:
    """Return the first problem of *error* in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
