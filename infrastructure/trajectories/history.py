"""Sequences of recorded transitions, and observations that contain their predecessors.

An agent that sees a part of the state declares ``history=n`` in its `TransitionSpec`. The model
then also reads the n - 1 observations and actions before the current ones, as further fields of the
observation: ``speed[-1]`` is the field ``speed`` one step earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    FieldValue,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.schema import Values, is_missing

OPEN_GROUPS = 1 << 16
"""Sequences that `stream_history` remembers, of groups that did not terminate."""


def sequences(transitions: Iterable[Transition], fields: Sequence[str]) -> list[list[Transition]]:
    """Cut *transitions* into sequences in which each continues the one before.

    A transition continues the newest one of its group if that did not terminate, and if its
    observation equals that one's ``next_observation`` in all of *fields* that the latter has. A
    missing value equals only a missing one. Groups may alternate, as those of environments that
    run side by side do.
    """
    found: list[list[Transition]] = []
    newest: dict[str, list[Transition]] = {}
    for transition in transitions:
        sequence = newest.get(transition.group)
        if sequence is None or not _continues(sequence[-1], transition, fields):
            sequence = newest[transition.group] = []
            found.append(sequence)
        sequence.append(transition)
    return found


def stream_sequences(
    transitions: Iterable[Transition], fields: Sequence[str]
) -> Iterator[list[Transition]]:
    """Yield what `sequences` returns, each once it has ended, in bounded memory.

    A sequence of a group that `OPEN_GROUPS` others have followed counts as ended.
    """
    newest: dict[str, list[Transition]] = {}
    for row in transitions:
        sequence = newest.pop(row.group, [])
        if sequence and not _continues(sequence[-1], row, fields):
            yield sequence
            sequence = []
        sequence.append(row)
        if row.terminated:
            yield sequence
            continue
        newest[row.group] = sequence  # moves to the end
        if len(newest) > OPEN_GROUPS:
            yield newest.pop(next(iter(newest)))
    yield from newest.values()


def with_history(spec: TransitionSpec, transitions: Iterable[Transition]) -> list[Transition]:
    """Add the earlier fields that ``spec.history`` declares, sequence by sequence.

    The first steps of a sequence lack predecessors; see `stack_history`. Transitions that have
    these fields are returned unchanged.
    """
    return list(stream_history(spec, transitions))


def stream_history(spec: TransitionSpec, transitions: Iterable[Transition]) -> Iterator[Transition]:
    """Yield what `with_history` returns, in bounded memory.

    A sequence of a group that `OPEN_GROUPS` others have followed counts as ended.
    """
    earlier = spec.earlier_fields.keys()
    newest: dict[str, deque[Transition]] = {}
    for row in transitions:
        past = newest.pop(row.group, None)
        if past is None or not _continues(past[-1], row, spec.current_fields):
            past = deque(maxlen=spec.history)
        past.append(row)
        if not row.terminated:
            newest[row.group] = past  # moves to the end
            if len(newest) > OPEN_GROUPS:
                del newest[next(iter(newest))]
        if earlier <= row.observation.keys():
            yield row
            continue
        steps = list(past)
        observation = stack_history(
            spec, [step.observation for step in steps], [step.action for step in steps[:-1]]
        )
        yield replace(row, observation=observation)


def stack_history(
    spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]
) -> dict[str, FieldValue | None]:
    """Return the observation to predict from: the newest, with the fields of earlier steps.

    Where a trajectory is younger than the history, its first observation stands for those before
    it, and an action of zeros, of the first label or of blank text for the actions.

    Args:
        spec: Specification with a ``history``.
        observations: Observations so far, oldest first; the last is the current one.
        actions: Actions between them, oldest first: one fewer.

    Raises:
        ValueError: There is no observation, or the number of actions does not fit.
    """
    if not observations or len(actions) != len(observations) - 1:
        raise ValueError(
            f"a history has one action fewer than observations, got {len(observations)} "
            f"observations and {len(actions)} actions"
        )
    stacked: dict[str, object] = dict(observations[-1])
    for name, (source, age) in spec.earlier_fields.items():
        if source in spec.action:
            blank = {source: _blank(spec.action[source])}
            step = actions[-age] if age <= len(actions) else blank
        else:
            step = observations[max(0, len(observations) - 1 - age)]
        stacked[name] = step.get(source)
    return cast("dict[str, FieldValue | None]", stacked)


def _continues(before: Transition, after: Transition, fields: Sequence[str]) -> bool:
    if before.terminated:
        return False
    return all(
        _same(before.next_observation[name], after.observation.get(name))
        for name in fields
        if name in before.next_observation
    )


def _same(first: object, second: object) -> bool:
    if is_missing(first) or is_missing(second):
        return is_missing(first) and is_missing(second)
    firsts, seconds = np.asarray(first), np.asarray(second)
    are_floats = firsts.dtype.kind == seconds.dtype.kind == "f"
    return bool(np.array_equal(firsts, seconds, equal_nan=are_floats))


def _blank(field: FieldType) -> FieldValue:
    if isinstance(field, Box):
        return (0.0,) * field.shape[0] if field.shape else 0.0
    return field.values[0] if isinstance(field, Discrete) else ""
