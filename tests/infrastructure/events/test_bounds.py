"""Every number in an event declares its bounds."""

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
from annotated_types import Ge, Le
from pydantic import BaseModel

from infrastructure.events import Event
from infrastructure.events.bounds import Amount, Bounds, Count, Increment, NoBounds, out_of_bounds
from infrastructure.events.bounds import increments as increments_of
from infrastructure.events.event import StepStats

BOUNDS = (Bounds, NoBounds, Ge, Le)
EVENTS = get_args(get_args(Event)[0])


def unbounded(annotation: Any, marks: tuple[object, ...], path: str) -> Iterator[str]:
    """Each number within *annotation*, and within the models in it, that has no bounds."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        for constraint in list(more):
            more += getattr(constraint, "metadata", ())  # of a `Field`
        yield from unbounded(inner, (*marks, *more), path)
    elif annotation in (int, float):
        if not any(isinstance(mark, BOUNDS) for mark in marks):
            yield path
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from unbounded(field.annotation, tuple(field.metadata), f"{path}.{name}")
    else:
        for each in get_args(annotation):
            yield from unbounded(each, marks, path)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_number_of_an_event_declares_its_bounds(event: type[BaseModel]) -> None:
    assert list(unbounded(event, (), event.__name__)) == []


class Part(BaseModel):
    size: Count | None = None
    bare: int | None = 0


class Example(BaseModel):
    seconds: Increment[Amount] = 0.0
    parts: tuple[Part, ...] = ()
    last: Part | None = None
    named: dict[str, float] = {}


def test_a_number_without_bounds_is_found_wherever_it_is() -> None:
    found = list(unbounded(Example, (), "Example"))
    assert found == ["Example.parts.bare", "Example.last.bare", "Example.named"]


def test_numbers_out_of_bounds_are_found_in_parts_too() -> None:
    assert list(out_of_bounds(Example(parts=(Part(size=3), Part()), last=Part()))) == []
    wrong = Example(seconds=float("nan"), parts=(Part(), Part(size=-1)), last=Part(size=2**60))
    assert [problem.split()[0] for problem in out_of_bounds(wrong)] == ["seconds", "size", "size"]


def test_increments_are_a_property_of_the_field() -> None:
    assert increments_of(Example) == ("seconds",)
    counted = {"applied", "overflow", "nonfinite_loss", "no_gradient"}
    assert {*increments_of(StepStats)} == counted | {"fp16", "samples", "seconds"}
