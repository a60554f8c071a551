"""Planted drift: outcomes or inputs of transitions, changed as by a source that breaks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import TypeAlias

from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, FieldValue, TransitionSpec

Rows: TypeAlias = Sequence[Transition]
Change: TypeAlias = Callable[[Rows, random.Random], list[Transition]]

FLIPPED = 0.25  # share of the outcomes whose label is another one
SHIFT = 1.0  # standard deviations


def changes(kind: str, spec: TransitionSpec, target: str, rows: Rows) -> Mapping[str, Change]:
    """The changes of a *kind* by what they change: the target, or any one of the inputs.

    Args:
        rows: Rows before the change, whose statistics it uses.
    """
    if kind == "flipped labels":
        return {target: _flip(spec, target, rows)}
    make = _shift if kind == "shifted input" else _kill
    possible = {name: make(name, field, rows) for name, field in spec.observation.items()}
    return {name: change for name, change in possible.items() if change is not None}


KINDS = ("flipped labels", "shifted input", "dead feature")


def _flip(spec: TransitionSpec, target: str, rows: Rows) -> Change:
    """Another label, or a number mirrored at the mean, for a share of the outcomes."""
    field = spec.targets[target]
    mean = fmean(_numbers(rows, target, outcome=True)) if isinstance(field, Box) else 0.0

    def flip(old: Rows, source: random.Random) -> list[Transition]:
        flipped = []
        for row in old:
            value = row.next_observation[target]
            if source.random() < FLIPPED:
                if isinstance(field, Discrete):
                    value = source.choice([each for each in field.values if each != value])
                else:
                    value = 2 * mean - float(str(value))
            outcome = {**row.next_observation, target: value}
            flipped.append(replace(row, next_observation=outcome))
        return flipped

    return flip


def _shift(name: str, field: object, rows: Rows) -> Change | None:
    """A sensor that reads too much."""
    if not isinstance(field, Box) or field.shape:
        return None
    amount = SHIFT * pstdev(_numbers(rows, name))
    return lambda old, _: [
        _with(row, name, value if value is None else float(str(value)) + amount)
        for row in old
        for value in [row.observation.get(name)]
    ]


def _kill(name: str, field: object, rows: Rows) -> Change | None:
    """A source that delivers one value for ever: the last that it delivered."""
    del field
    last = rows[-1].observation.get(name)
    return lambda old, _: [_with(row, name, last) for row in old]


def _with(row: Transition, name: str, value: FieldValue | None) -> Transition:
    return replace(row, observation={**row.observation, name: value})


def _numbers(rows: Rows, name: str, *, outcome: bool = False) -> list[float]:
    values = [(row.next_observation if outcome else row.observation).get(name) for row in rows]
    return [float(str(value)) for value in values if value is not None]
