"""Fields of recorded transitions as columns of numbers.

Shapes: N rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from infrastructure.agent_contract.transition import (
    Box,
    FieldType,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.schema import MAX_MAGNITUDE, label_of, normalise

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One field, or one dimension of a `Box`, over N rows.

    Attributes:
        field: Name of the field, without its part.
        title: Name for people, such as ``observation.speed`` or ``reward``.
        is_number: Whether values are numbers.
        values: ``[N]``: float64 numbers, NaN where missing; or an int64 digest of each label or
            text, 0 where missing.
    """

    field: str
    title: str
    is_number: bool
    values: NDArray[Any]


def input_columns(spec: TransitionSpec, transitions: Sequence[Transition]) -> Iterator[Column]:
    """Yield observation and action, field by field."""
    yield from observation_columns(spec, transitions, spec.observation)
    actions = [row.action for row in transitions]
    for name, kind in spec.action.items():
        yield from _columns(name, f"action.{name}", kind, [row.get(name) for row in actions])


def observation_columns(
    spec: TransitionSpec, transitions: Sequence[Transition], names: Iterable[str]
) -> Iterator[Column]:
    """Yield the fields of the observation with these *names*."""
    observations = [row.observation for row in transitions]
    for name in names:
        values = [row.get(name) for row in observations]
        yield from _columns(name, f"observation.{name}", spec.observation[name], values)


def target_columns(spec: TransitionSpec, transitions: Sequence[Transition]) -> Iterator[Column]:
    """Yield the targets, field by field; a ``delta`` as its value after the action."""
    for name, kind in spec.targets.items():
        if name in ("reward", "terminated"):
            values = [getattr(row, name) for row in transitions]
        else:
            values = [row.next_observation.get(name) for row in transitions]
        yield from _columns(name, name, kind, values)


def _columns(name: str, title: str, kind: FieldType, values: Sequence[object]) -> Iterator[Column]:
    if not isinstance(kind, Box):
        digests = _digests(kind, values)
        yield Column(field=name, title=title, is_number=False, values=digests)
    elif not kind.shape:
        yield Column(field=name, title=title, is_number=True, values=_numbers(values, ()))
    else:
        numbers_NC = _numbers(values, kind.shape)
        for place, numbers_N in enumerate(numbers_NC.T):
            shown = f"{title}[{place}]"
            yield Column(field=name, title=shown, is_number=True, values=numbers_N)


def _numbers(values: Sequence[object], shape: tuple[int, ...]) -> Numbers:
    """*values* as ``[N, *shape]`` float64; what is missing or unusable becomes NaN."""
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(0)
    if numbers.shape != (len(values), *shape):
        numbers = np.array([_vector(value, shape) for value in values], dtype=np.float64)
    return np.where(np.abs(numbers) <= MAX_MAGNITUDE, numbers, np.nan)


def _vector(value: object, shape: tuple[int, ...]) -> list[float] | float:
    if not shape:
        return _number(value)
    if not isinstance(value, Sequence | np.ndarray) or len(value) != shape[0]:
        return [np.nan] * shape[0]
    return [_number(each) for each in value]


def _number(value: object) -> float:
    try:
        return float(cast("float", value))
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _digests(kind: FieldType, values: Sequence[object]) -> NDArray[np.int64]:
    known: dict[str, int] = {}
    digests = np.zeros(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        if value is None:
            continue
        text = _text_of(kind, value)
        digest = known.get(text)
        if digest is None:
            content = text.encode("utf-8", "surrogatepass")
            hashed = hashlib.blake2b(content, digest_size=8).digest()
            digest = known[text] = int.from_bytes(hashed, "big", signed=True)
        digests[row] = digest
    return digests


def _text_of(kind: FieldType, value: object) -> str:
    """What tells *value* from others; texts that a model reads alike are the same."""
    if isinstance(value, str):
        return " ".join(normalise(value).split()) if isinstance(kind, Text) else value
    if isinstance(kind, Text) and isinstance(value, Sequence):
        return repr(tuple(value))
    return label_of(value)
