"""Checks whole columns of recorded values at once, many times as fast as value by value.

A check that passes is certain. One that fails only says that some value is unusual, and perhaps
fine: `transition_problem` then decides, and names the value.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.schema import (
    MAX_MAGNITUDE,
    Values,
    is_empty,
    is_missing,
    label_of,
)

_NUMBERS: frozenset[type] = frozenset({float, int, bool})
_TEXTS: frozenset[type] = frozenset({str})
_LABELS: frozenset[type] = frozenset({str, int, bool})
_SEQUENCES: frozenset[type] = frozenset({tuple, list})
_NOT_IN_OBSERVATION = ("reward", "terminated")

Numbers = NDArray[np.float64]


def inputs_fit(
    spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]
) -> bool:
    """Whether no row has an `input_problem`; False where that is not certain."""
    parts = ((spec.observation, observations), (spec.action, actions))
    return all(
        _fits(field, _present([row.get(name) for row in rows]))
        for fields, rows in parts
        for name, field in fields.items()
    )


def _present(column: list[Any]) -> list[Any]:
    """Those values of *column* that are not missing."""
    if {float, type(None)}.isdisjoint(map(type, column)):
        return column
    return [value for value in column if not is_missing(value)]


def transitions_fit(spec: TransitionSpec, transitions: Sequence[Transition]) -> bool:
    """Whether no transition has a `transition_problem`; False if uncertain."""
    if any(is_empty(spec, each.observation, each.action) for each in transitions):
        return False
    observations = [transition.observation for transition in transitions]
    if not inputs_fit(spec, observations, [transition.action for transition in transitions]):
        return False
    try:
        return all(_target_fits(field, name, transitions) for name, field in spec.targets.items())
    except KeyError:
        return False


def box_targets(field: Box, name: str, transitions: Sequence[Transition]) -> Numbers | None:
    """Values of the target *name*, or its changes for ``delta``, as `target_value` gives them.

    Returns:
        ``[N, C]`` float64, all finite; None if a value is unusual, and perhaps missing.
    """
    try:
        values = _usable_numbers(field, _target_column(name, transitions))
        if values is not None and field.delta and name not in _NOT_IN_OBSERVATION:
            before = _usable_numbers(
                field, [transition.observation[name] for transition in transitions]
            )
            values = None if before is None else values - before
    except KeyError:
        return None
    if values is None or not _are_usable(values):
        return None
    return values


def _target_fits(field: FieldType, name: str, transitions: Sequence[Transition]) -> bool:
    if isinstance(field, Box):
        return box_targets(field, name, transitions) is not None
    column = _target_column(name, transitions)
    labels = set(field.values) if isinstance(field, Discrete) else set()
    return _fits(field, column) and set(map(label_of, column)) <= labels


def _target_column(name: str, transitions: Sequence[Transition]) -> list[Any]:
    if name in _NOT_IN_OBSERVATION:
        return [getattr(transition, name) for transition in transitions]
    return [transition.next_observation[name] for transition in transitions]


def _usable_numbers(field: Box, column: Sequence[Any]) -> Numbers | None:
    """*column* as ``[N, C]``; None if a number is missing, or so large that changes are rounded."""
    if not _fits(field, column):
        return None
    flat = chain.from_iterable(column) if field.shape else column
    values = np.fromiter(flat, dtype=np.float64).reshape(len(column), *(field.shape or (1,)))
    return values if _are_usable(values) else None


def _are_usable(values: Numbers) -> bool:
    return bool((np.abs(values) <= MAX_MAGNITUDE).all())  # NaN compares false


def _fits(field: FieldType, column: Sequence[Any]) -> bool:
    kinds = set(map(type, column))
    if isinstance(field, Discrete):
        return kinds <= _LABELS
    if isinstance(field, Text):
        return kinds <= _TEXTS or (
            kinds <= _SEQUENCES and _are(_TEXTS, chain.from_iterable(column))
        )
    if not field.shape:
        return kinds <= _NUMBERS and _are_floats(column)
    if not kinds <= _SEQUENCES or not set(map(len, column)) <= {field.shape[0]}:
        return False
    numbers = list(chain.from_iterable(column))
    return _are(_NUMBERS, numbers) and _are_floats(numbers)


def _are(kinds: frozenset[type], values: Iterable[object]) -> bool:
    return set(map(type, values)) <= kinds


def _are_floats(numbers: Sequence[float]) -> bool:
    try:
        array("d", numbers)
    except OverflowError:  # an integer of hundreds of digits
        return False
    return True
