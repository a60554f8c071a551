"""The forms of records that a configured agent reads: one line or one file to transitions."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol, TypeAlias, cast

from infrastructure.agent_contract.transition import FieldValue, Transition, TransitionSpec
from infrastructure.trajectories.genesis_records import casebank, replay_trajectories
from infrastructure.trajectories.genesis_records import trajectory_pool as pool
from infrastructure.trajectories.record import parse_transition

RecordFormat: TypeAlias = Literal[
    "transitions", "records", "casebank", "replay-trajectories", "trajectory-pool"
]

GENESIS_SPECS: Mapping[str, TransitionSpec] = {
    "casebank": casebank.SPEC,
    "replay-trajectories": replay_trajectories.SPEC,
    "trajectory-pool": pool.SPEC,
}
"""Fields of Genesis' own formats."""

_TRANSITION_KEYS = tuple(field.name for field in fields(Transition))
_OWN_KEYS = ("id", "agent")
_TOO_DEEP = "not JSON that can be read: it is nested too deeply"
_DEFAULTS: Mapping[str, object] = {
    "action": {},
    "reward": 0.0,
    "next_observation": {},
    "terminated": False,
    "propensity": None,
    "info": {},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedRecord:
    """One record.

    Attributes:
        id: Identity that its writer gave it; empty if none.
        agent: Agent that it names; empty if none.
        transitions: Its transitions, in order.
    """

    id: str = ""
    agent: str = ""
    transitions: Sequence[Transition]


class RecordKeys(Protocol):
    """Keys of the records in the format ``records``; see `SourceTable`."""

    @property
    def group(self) -> str:
        """Key of the group."""

    @property
    def id(self) -> str:
        """Key of the identity, or empty."""

    @property
    def reward(self) -> str:
        """Key of the reward, or empty."""

    @property
    def terminated(self) -> str:
        """Key that tells whether the trajectory ended, or empty."""

    @property
    def agent(self) -> str:
        """Key of the agent's name, or empty."""


Decode: TypeAlias = Callable[[bytes], DecodedRecord]
"""Decodes the bytes of one JSON object; raises ValueError with the reason."""


def line_decoder(record_format: RecordFormat, keys: RecordKeys) -> Decode:
    """Return the decoder of a format that has one record per line."""
    if record_format == "transitions":
        return decode_transition
    if record_format == "records":
        return lambda line: decode_flat_record(line, keys)
    if record_format == "casebank":
        return lambda line: _of_genesis(casebank.decode_case(line))
    return lambda line: _of_genesis(replay_trajectories.decode_trajectory(line))


def decode_transition(line: bytes) -> DecodedRecord:
    """Decode a line of the format ``transitions``.

    Raises:
        ValueError: A key is missing, unknown or of the wrong type.
    """
    body = json_object(line)
    known = (*_TRANSITION_KEYS, *_OWN_KEYS)
    for key in body:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise ValueError(f"there is no key {key[:80]!r}; {meant}")
    for key in ("group", "observation"):
        if key not in body:
            raise ValueError(f"the key {key!r} is missing")
    values = {**_DEFAULTS, **body}
    transition = parse_transition({key: values[key] for key in _TRANSITION_KEYS})
    return DecodedRecord(id=_name(body, "id"), agent=_name(body, "agent"), transitions=[transition])


def decode_flat_record(line: bytes, keys: RecordKeys) -> DecodedRecord:
    """Decode any JSON object; its values become fields named like ``metrics.loss``.

    Each field is kept both as observation and as next observation, so that the definition may
    declare any of them as input or target. Numbers, strings, booleans and flat lists are kept; null
    counts as missing, also among numbers, and any other list is kept as JSON text.

    Raises:
        ValueError: The group is missing, or a value cannot be recorded.
    """
    values = flatten(json_object(line))
    group = values.get(keys.group)
    if group is None or group == "":
        raise ValueError(f"the key {keys.group!r} is missing, which is the group")
    reward = values.get(keys.reward, 0.0) if keys.reward else 0.0
    terminated = values.get(keys.terminated, False) if keys.terminated else False
    if not isinstance(terminated, bool):
        raise ValueError(f"{keys.terminated!r} must be true or false, got {terminated!r:.60}")
    transition = parse_transition(
        {
            "group": str(group),
            "observation": values,
            "action": values,
            "reward": float(reward) if isinstance(reward, bool) else reward,
            "next_observation": values,
            "terminated": terminated,
            "propensity": None,
            "info": {},
        }
    )
    return DecodedRecord(
        id=_name(values, keys.id) if keys.id else "",
        agent=_name(values, keys.agent) if keys.agent else "",
        transitions=[transition],
    )


def flatten(value: Mapping[str, object]) -> dict[str, FieldValue]:
    """Return the values of a JSON object by dotted name.

    Raises:
        ValueError: It is nested too deeply.
    """
    try:
        return _flatten(value, "")
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _flatten(value: Mapping[str, object], prefix: str) -> dict[str, FieldValue]:
    flat: dict[str, FieldValue] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            flat.update(_flatten(item, f"{name}."))
        elif isinstance(item, list) and not _is_flat(item):
            flat[name] = json.dumps(item)
        elif item is not None:
            flat[name] = cast(FieldValue, item)
    return flat


def json_object(line: bytes) -> dict[str, object]:
    """Decode a JSON object.

    Raises:
        ValueError: *line* is something else.
    """
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at column {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError:  # the only one that is left
        raise ValueError("not JSON that can be read: a number has too many digits") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if not isinstance(value, dict):
        raise ValueError(f"a record is a JSON object, got {line[:40]!r}")
    return value


def _of_genesis(transitions: Sequence[Transition]) -> DecodedRecord:
    agent = str(transitions[0].observation.get("agent", "")) if transitions else ""
    return DecodedRecord(agent="" if agent == "unknown" else agent, transitions=transitions)


def _name(values: Mapping[str, object], key: str) -> str:
    value = values.get(key)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{key!r} must be a string or an integer, got {value!r:.60}")
    return str(value)


def _is_flat(items: Sequence[object]) -> bool:
    present = [item for item in items if item is not None]
    return all(isinstance(item, str) for item in items) or (
        bool(present)
        and all(isinstance(item, int | float) and not isinstance(item, bool) for item in present)
    )
