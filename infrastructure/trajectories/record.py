"""One transition as one line of a segment: JSON that carries a checksum of itself.

A line reads ``{"v":1,"crc":"89abcdef","transition":{...}}``. The checksum covers the bytes of
the inner object, so that a torn or bit-flipped line is told from a whole one. Numbers that JSON
does not know are written as ``NaN`` and ``Infinity``, which Python's reader accepts.
"""

from __future__ import annotations

import json
import zlib

from infrastructure.agent_contract.transition import FieldValue, Transition

_HEAD = b'{"v":1,"crc":"'
_MIDDLE = b'","transition":'
_PAYLOAD_AT = len(_HEAD) + 8 + len(_MIDDLE)
_FIELDS = frozenset(Transition.__dataclass_fields__)


class RecordError(ValueError):
    """A line is no whole record of a transition; the message says why."""


def encode_record(transition: Transition) -> bytes:
    """Write *transition* as one line, newline included.

    Arrays and tensors are taken by their ``tolist()``.

    Raises:
        ValueError: A value is not a number, a string, or a flat list of either.
    """
    body = {
        "group": transition.group,
        "observation": _fields("observation", transition.observation),
        "action": _fields("action", transition.action),
        "reward": float(transition.reward),
        "next_observation": _fields("next_observation", transition.next_observation),
        "terminated": bool(transition.terminated),
        "propensity": None if transition.propensity is None else float(transition.propensity),
        "info": _fields("info", transition.info),
    }
    payload = json.dumps(body, separators=(",", ":")).encode("ascii")
    return b"%b%08x%b%b}\n" % (_HEAD, zlib.crc32(payload), _MIDDLE, payload)


def decode_record(line: bytes) -> Transition:
    """Read a line without its newline. Lists come back as tuples.

    Raises:
        RecordError: The line is torn, altered, of another version, or no valid transition.
    """
    if not line.startswith(_HEAD) or not line.endswith(b"}}"):
        raise RecordError("torn, or not a record of version 1")
    payload = line[_PAYLOAD_AT:-1]
    if line[len(_HEAD) : _PAYLOAD_AT] != b"%08x%b" % (zlib.crc32(payload), _MIDDLE):
        raise RecordError("checksum does not match: torn or altered")
    try:
        return _transition(json.loads(payload))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a valid transition: {error}") from error


def _transition(body: object) -> Transition:
    if not isinstance(body, dict) or set(body) != _FIELDS:
        raise ValueError("its fields differ from those of a transition")
    group, reward, propensity = body["group"], body["reward"], body["propensity"]
    if not isinstance(group, str) or not isinstance(body["terminated"], bool):
        raise ValueError("group must be a string and terminated a boolean")
    if not _is_number(reward) or not (propensity is None or _is_number(propensity)):
        raise ValueError("reward and propensity must be numbers")
    return Transition(
        group=group,
        observation=_fields("observation", body["observation"]),
        action=_fields("action", body["action"]),
        reward=reward,
        next_observation=_fields("next_observation", body["next_observation"]),
        terminated=body["terminated"],
        propensity=propensity,
        info=_fields("info", body["info"]),
    )


def _fields(where: str, values: object) -> dict[str, FieldValue]:
    try:
        items = dict(values).items()  # type: ignore[call-overload]  # any mapping, or refused
    except (TypeError, ValueError):
        raise ValueError(f"{where} must map names to values, got {values!r:.80}") from None
    return {str(name): _field_value(f"{where}.{name}", value) for name, value in items}


def _field_value(where: str, value: object) -> FieldValue:
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        value = to_list()
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple) and (
        all(isinstance(item, str) for item in value) or all(map(_is_number, value))
    ):
        return tuple(value)
    raise ValueError(
        f"{where} must be a number, a string, or a flat list of either, got {value!r:.80}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
