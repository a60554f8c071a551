"""Bounds of the numbers in events, as marks on the fields.

Pydantic does not apply them: a worker never fails to report a number, and a reader can tell an
impossible number from a line of another format. `out_of_bounds` applies them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

from pydantic import BaseModel

MAX_STEPS = 2**31 - 1  # what the database's integers hold
_MAX_COUNT = 2**53
_INCREMENT = "increment"
_Type = TypeVar("_Type")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Mark of a number between 0 and *highest*, both included; NaN is out of bounds."""

    highest: float


@dataclass(frozen=True, slots=True)
class NoBounds:
    """Mark of a number that may have any value, NaN and infinities included."""


StoredCount: TypeAlias = Annotated[int, Bounds(MAX_STEPS)]
Count: TypeAlias = Annotated[int, Bounds(_MAX_COUNT)]
Amount: TypeAlias = Annotated[float, Bounds(sys.float_info.max)]  # finite
Share: TypeAlias = Annotated[float, Bounds(1)]
AnyNumber: TypeAlias = Annotated[float, NoBounds()]
Increment: TypeAlias = Annotated[_Type, _INCREMENT]  # since the previous event of its kind


def out_of_bounds(part: BaseModel) -> Iterator[str]:
    """Each number of *part*, and of the models in it, that is out of its bounds, as one phrase."""
    bounds, parts = _declared(type(part))
    for name, highest in bounds:
        value = getattr(part, name)
        if value is not None and not 0 <= value <= highest:
            yield f"{name} is not between 0 and {highest:g}"
    for name in parts:
        value = getattr(part, name)
        for nested in value if isinstance(value, tuple) else (value,):
            if nested is not None:
                yield from out_of_bounds(nested)


def increments(model: type[BaseModel]) -> tuple[str, ...]:
    """Names of the fields of *model* that are declared `Increment`."""
    return tuple(name for name, field in model.model_fields.items() if _INCREMENT in field.metadata)


@cache
def _declared(
    model: type[BaseModel],
) -> tuple[tuple[tuple[str, float], ...], tuple[str, ...]]:
    """Fields of *model* with their highest value, and its fields that hold models."""
    bounds, parts = [], []
    for name, field in model.model_fields.items():
        marks = [*field.metadata, *_within(field.annotation)]
        bounds += [(name, mark.highest) for mark in marks if isinstance(mark, Bounds)]
        if any(isinstance(mark, type) and issubclass(mark, BaseModel) for mark in marks):
            parts.append(name)
    return tuple(bounds), tuple(parts)


def _within(annotation: Any) -> Iterator[object]:  # noqa: ANN401  # no type covers all of them
    """Each type and mark in *annotation*."""
    yield annotation
    for argument in get_args(annotation):
        yield from _within(argument)
