"""Whether recorded values are what a `TransitionSpec` declares, and where targets are read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import cast

import numpy as np

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    Text,
    Transition,
    TransitionSpec,
)

MAX_MAGNITUDE = 1e15
"""A number beyond this, or not finite, counts as missing: float32 could not use it anyway."""

Values = Mapping[str, object]

_PLAIN_NUMBERS = {float, int, bool}  # told by their type alone, ten times faster than as `Real`
_PLAIN_TEXT = {str}


def is_usable(number: float) -> bool:
    """Whether *number* is finite and of a magnitude that float32 arithmetic survives."""
    return abs(number) <= MAX_MAGNITUDE  # NaN compares false


def label_of(value: object) -> str:
    """The label that *value* carries as a `Discrete` field: booleans read ``true``, ``false``."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value)


def input_problem(spec: TransitionSpec, observation: Values, action: Values) -> str | None:
    """Say what keeps *observation* and *action* from being encoded, or None."""
    problems = _part_problems("observation", spec.observation, observation)
    return next(problems, None) or next(_part_problems("action", spec.action, action), None)


def target_problem(spec: TransitionSpec, transition: Transition) -> str | None:
    """Say what keeps the targets of *transition* from being learned, or None.

    A target that is not a number, or a label that is not declared, makes the whole transition
    useless; as an *input* the same would merely count as missing or unknown.
    """
    for name, field in spec.targets.items():
        value = target_value(spec, transition, name)
        if value is None:
            return f"target {name!r} is missing from next_observation"
        if problem := _value_problem(field, value):
            return f"target {name!r} {problem}"
        if isinstance(field, Discrete) and label_of(value) not in field.values:
            return f"target {name!r} has the undeclared label {label_of(value)!r}"
        if isinstance(field, Box) and not all(map(is_usable, as_vector(value))):
            return f"target {name!r} is not a usable number"
    return None


def target_value(spec: TransitionSpec, transition: Transition, name: str) -> object:
    """The raw value of target *name*, a change where the spec says ``delta``; None if missing."""
    if name == "reward":
        return transition.reward
    if name == "terminated":
        return transition.terminated
    value: object = transition.next_observation.get(name)
    field = spec.targets[name]
    if value is None or not isinstance(field, Box) or not field.delta:
        return value
    before = transition.observation.get(name)
    if before is None or _value_problem(field, before) or _value_problem(field, value):
        return None
    pairs = zip(as_vector(value), as_vector(before), strict=True)
    change = tuple(after - start for after, start in pairs)
    return change if field.shape else change[0]


def as_vector(value: object) -> Sequence[float]:
    """A `Box` value as a sequence; a scalar as a sequence of one."""
    if isinstance(value, Sequence | np.ndarray):
        return value  # type: ignore[return-value]  # an array is a sequence in all but name
    return (float(value),)  # type: ignore[arg-type]  # the schema admits only numbers here


def _part_problems(part: str, fields: Mapping[str, FieldType], values: Values) -> Iterator[str]:
    for name, field in fields.items():
        if name not in values:
            yield f"{part} {name!r} is missing; recorded are {sorted(values)}"
        elif problem := _value_problem(field, values[name]):
            yield f"{part} {name!r} {problem}"


def _value_problem(field: FieldType, value: object) -> str | None:
    if isinstance(field, Box):
        fits, wanted = _is_box(field, value), f"be numbers of shape {field.shape}"
    elif isinstance(field, Text):
        fits, wanted = _is_text(value), "be a string or a list of strings"
    else:
        fits, wanted = isinstance(value, str | int | np.bool_), "be a label"
    return None if fits else f"must {wanted}, got {_shown(value)}"


def _shown(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python does not print numbers of thousands of digits
        return f"a {type(value).__name__} too long to print"


def _is_box(field: Box, value: object) -> bool:
    if field.shape == ():
        return (type(value) in _PLAIN_NUMBERS or isinstance(value, Real | np.bool_)) and (
            type(value) is float or _are_floats((value,))
        )
    return _is_numbers(value, field.shape[0])


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Sequence)
        and (set(map(type, value)) <= _PLAIN_TEXT or all(isinstance(item, str) for item in value))
    )


def _is_numbers(value: object, length: int) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == (length,) and value.dtype.kind in "fiub"
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) == length
        and (
            set(map(type, value)) <= _PLAIN_NUMBERS or all(isinstance(item, Real) for item in value)
        )
        and _are_floats(value)
    )


def _are_floats(numbers: Sequence[object]) -> bool:
    """Whether *numbers* can be converted: whole ones of hundreds of digits cannot."""
    try:
        array("d", cast("Sequence[float]", numbers))  # real numbers, as was checked
    except OverflowError:
        return False
    return True
