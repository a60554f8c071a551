"""Whether a rollout can continue each field of the observation."""

from __future__ import annotations

from collections.abc import Sequence, Set

from infrastructure.agent_contract.transition import Box, Discrete, FieldType, TransitionSpec

NOT_IN_STATE = ("reward", "terminated")
"""Targets that the next observation does not hold."""


def check_continued(
    spec: TransitionSpec, constant: Sequence[str], hold: Sequence[str] = ()
) -> None:
    """Check that something says how each input of the observation continues.

    Args:
        constant: Keys of fields that did not vary in the training data; they have no effect.
        hold: Fields that keep their values.

    Raises:
        ValueError: A field is a `Text`, or not predicted; or *hold* names something else than a
            field that is not predicted.
    """
    _check_hold(spec, hold)
    for name, field in spec.observation.items():
        if f"observation.{name}" in constant and name not in spec.targets:
            continue
        if not isinstance(field, Box | Discrete):
            raise ValueError(
                f"observation {name!r} is Text, which no target predicts: a rollout needs "
                f"observations of Box and Discrete alone"
            )
        if name in spec.earlier_fields or name in hold:
            continue
        target = spec.targets.get(name)
        if name in NOT_IN_STATE or not _is_like(field, target):
            raise ValueError(
                f"observation {name!r} is not predicted: declare a target of that name and type, "
                f"or name the field in hold if it keeps its value"
            )


def _check_hold(spec: TransitionSpec, hold: Sequence[str]) -> None:
    if isinstance(hold, str):
        raise ValueError(f"hold must be a list of fields, got {hold!r}: write [{hold!r}]")
    if not isinstance(hold, Sequence | Set):
        raise ValueError(f"hold must be a list of fields, got {hold!r:.60}")
    for name in hold:
        if not isinstance(name, str) or name not in spec.observation:
            raise ValueError(f"hold names {name!r}, which the observation lacks")
        if name in spec.earlier_fields or name in spec.targets:
            raise ValueError(
                f"hold names {name!r}, which the model continues: leave it out, it cannot be held"
            )


def _is_like(field: FieldType, target: FieldType | None) -> bool:
    if isinstance(field, Box):
        return isinstance(target, Box) and field.shape == target.shape
    return field == target
