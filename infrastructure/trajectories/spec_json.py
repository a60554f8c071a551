"""A `TransitionSpec` as JSON, so that a saved model says what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    Text,
    TransitionSpec,
)

_PARTS = ("observation", "action", "targets")


def spec_to_json(spec: TransitionSpec) -> dict[str, object]:
    """Write *spec* as a JSON object."""
    parts: dict[str, object] = {
        part: {name: _field_to_json(field) for name, field in getattr(spec, part).items()}
        for part in _PARTS
    }
    success = None if spec.success is None else list(spec.success)
    return parts | {"success": success, "improvement": spec.improvement}


def spec_from_json(value: Mapping[str, object]) -> TransitionSpec:
    """Read what `spec_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: *value* is no specification.
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
    )


def _field_to_json(field: FieldType) -> dict[str, object]:
    if isinstance(field, Box):
        return {"type": "box", "shape": list(field.shape), "delta": field.delta}
    if isinstance(field, Discrete):
        return {"type": "discrete", "values": list(field.values)}
    return {"type": "text", "buckets": field.buckets}


def _field_from_json(value: Mapping[str, object]) -> FieldType:
    if value["type"] == "box":
        return Box(shape=tuple(cast("list[int]", value["shape"])), delta=bool(value["delta"]))
    if value["type"] == "discrete":
        return Discrete(values=tuple(cast("list[str]", value["values"])))
    if value["type"] == "text":
        return Text(buckets=cast(int, value["buckets"]))
    raise ValueError(f"a field is a box, a discrete or a text, got {value['type']!r}")
