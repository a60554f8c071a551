"""A `TransitionSpec` applied: checks of recorded values, target values, and its JSON form."""

from __future__ import annotations

import math
import unicodedata
from array import array
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Literal, cast

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
"""Numbers beyond this magnitude, and non-finite ones, count as missing: float32 cannot use them."""

Values = Mapping[str, object]

_PLAIN_NUMBERS = {float, int, bool}  # a lookup by type is ten times faster than a check for `Real`
_PLAIN_TEXT = {str}
_PARTS = ("observation", "action", "targets")


def is_usable(number: float) -> bool:
    """Whether *number* is finite and small enough for float32 arithmetic."""
    return abs(number) <= MAX_MAGNITUDE  # NaN compares false


def is_missing(value: object) -> bool:
    """Whether *value* is None or NaN, which mean that the value of a field is missing."""
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def label_of(value: object) -> str:
    """Return the label of *value* as a `Discrete` field; booleans are ``true`` and ``false``."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value)


def labels_of(values: Sequence[object]) -> Sequence[str]:
    """Return `label_of` each of *values*."""
    if set(map(type, values)) <= _PLAIN_TEXT:
        return cast("Sequence[str]", values)
    return [label_of(value) for value in values]


def input_problem(spec: TransitionSpec, observation: Values, action: Values) -> str | None:
    """Return the reason why *observation* and *action* cannot be encoded, or None.

    Values may be missing: absent, None or NaN; also single numbers of a vector.
    """
    problems = _part_problems("observation", spec.observation, observation)
    return next(problems, None) or next(_part_problems("action", spec.action, action), None)


def transition_problem(spec: TransitionSpec, transition: Transition) -> str | None:
    """Return the reason why nothing can be learned from *transition*, or None.

    It has an `input_problem` or a `target_problem`, or none of the declared inputs.
    """
    observation, action = transition.observation, transition.action
    if is_empty(spec, observation, action):
        names = ", ".join(map(repr, [*spec.observation, *spec.action]))
        return f"every input is missing ({names}), got {sorted({**observation, **action})}"
    return input_problem(spec, observation, action) or target_problem(spec, transition)


def is_empty(spec: TransitionSpec, observation: Values, action: Values) -> bool:
    """Whether *observation* and *action* have a value of no declared field."""
    parts = ((spec.observation, observation), (spec.action, action))
    return all(is_missing(values.get(name)) for fields, values in parts for name in fields)


def target_problem(spec: TransitionSpec, transition: Transition) -> str | None:
    """Return the reason why the targets of *transition* cannot be learned, or None.

    A missing number or an undeclared label excludes the whole transition when it is a target; as
    an *input* it merely counts as missing or unknown.
    """
    for name, field in spec.targets.items():
        value = target_value(spec, transition, name)
        if value is None or (isinstance(field, Discrete) and is_missing(value)):
            also = " or from observation" if isinstance(field, Box) and field.delta else ""
            return f"target {name!r} is missing from next_observation{also}"
        if problem := outcome_problem(field, value):
            return f"target {name!r} {problem}"
    return None


def outcome_problem(field: FieldType, value: object) -> str | None:
    """Return the reason why *value* cannot be the outcome of a target of this type, or None."""
    if problem := _value_problem(field, value):
        return problem
    if is_undeclared(field, value):
        return f"must be a declared label, got {_shown(label_of(value))}"
    if isinstance(field, Box) and not all(map(is_usable, as_vector(value))):
        return f"must be finite and below {MAX_MAGNITUDE:g}, got {_shown(value)}"
    return None


def is_undeclared(field: FieldType, value: object) -> bool:
    """Whether *value* is a label, but none of those that *field* declares."""
    if not isinstance(field, Discrete) or _value_problem(field, value):
        return False
    return label_of(value) not in field.values


def target_value(spec: TransitionSpec, transition: Transition, name: str) -> object:
    """Return the raw value of target *name*, or its change for ``delta``; None if missing."""
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
    """Return a `Box` value as a sequence; a scalar becomes a sequence of one."""
    if isinstance(value, Sequence | np.ndarray):
        return value  # type: ignore[return-value]  # an array supports all that is used here
    return (float(value),)  # type: ignore[arg-type]  # the schema admits only numbers here


def spec_to_json(spec: TransitionSpec) -> dict[str, object]:
    """Return *spec* as a JSON object; it is saved with each model."""
    parts: dict[str, object] = {
        part: {name: _field_to_json(field) for name, field in getattr(spec, part).items()}
        for part in _PARTS
    }
    success = None if spec.success is None else list(spec.success)
    sequence = {"history": spec.history, "rollout_steps": spec.rollout_steps}
    if sequence == {"history": 1, "rollout_steps": 0}:  # as releases before these fields wrote it
        sequence = {}
    split = {} if spec.split == "group" else {"split": spec.split}
    return parts | {"success": success, "improvement": spec.improvement} | sequence | split


def spec_from_json(value: Mapping[str, object]) -> TransitionSpec:
    """Rebuild the specification that `spec_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: *value* does not describe a specification.
    """
    parts = {}
    for part in _PARTS:
        fields = cast(Mapping[str, Mapping[str, object]], value[part])
        parts[part] = {name: _field_from_json(field) for name, field in fields.items()}
    success = cast("list[str] | None", value["success"])
    return TransitionSpec(
        **parts,
        success=None if success is None else (success[0], success[1]),
        improvement=cast("str | None", value["improvement"]),
        history=cast(int, value.get("history", 1)),
        rollout_steps=cast(int, value.get("rollout_steps", 0)),
        split=cast('Literal["group", "time"]', value.get("split", "group")),
    )


def _part_problems(part: str, fields: Mapping[str, FieldType], values: Values) -> Iterator[str]:
    if not isinstance(values, Mapping):
        yield f"{part} must be a mapping of its fields, got {_shown(values)}"
        return
    for name, field in fields.items():
        value = values.get(name)
        if is_missing(value):
            continue
        if isinstance(field, Box) and isinstance(value, list | tuple) and None in value:
            value = [math.nan if number is None else number for number in value]
        if problem := _value_problem(field, value):
            yield f"{part} {name!r} {problem}"


def _value_problem(field: FieldType, value: object) -> str | None:
    if isinstance(field, Box):
        fits, wanted = _is_box(field, value), f"be numbers of shape {field.shape}"
    elif isinstance(field, Text):
        fits, wanted = _is_text(value), "be a string or a list of strings"
    else:
        fits, wanted = isinstance(value, str | int | np.bool_ | np.integer), "be a label"
    return None if fits else f"must {wanted}, got {_shown(value)}"


def _shown(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python refuses to print numbers of thousands of digits
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
    """Whether *numbers* fit into float64; integers of hundreds of digits do not."""
    try:
        array("d", cast("Sequence[float]", numbers))  # checked by the caller
    except OverflowError:
        return False
    return True


def _field_to_json(field: FieldType) -> dict[str, object]:
    if isinstance(field, Box):
        return {"type": "box", "shape": list(field.shape), "delta": field.delta}
    if isinstance(field, Discrete):
        return {"type": "discrete", "values": list(field.values)}
    embedding = {"embedding": field.embedding} if field.embedding else {}
    return {"type": "text", "buckets": field.buckets, **embedding}


def _field_from_json(value: Mapping[str, object]) -> FieldType:
    if value["type"] == "box":
        return Box(shape=tuple(cast("list[int]", value["shape"])), delta=bool(value["delta"]))
    if value["type"] == "discrete":
        return Discrete(values=tuple(cast("list[str]", value["values"])))
    if value["type"] == "text":
        return Text(
            buckets=cast(int, value["buckets"]), embedding=cast(str, value.get("embedding", ""))
        )
    raise ValueError(f"a field must be of type box, discrete or text, got {value['type']!r}")


def normalise(text: str) -> str:
    """Fold case and compose characters (NFC)."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFD", text).casefold()
    return unicodedata.normalize("NFC", folded)
