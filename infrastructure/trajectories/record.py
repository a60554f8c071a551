"""Encodes one transition as one line of JSON with a checksum.

A line reads ``{"v":1,"crc":"89abcdef","transition":{...}}``. The checksum (CRC-32, hexadecimal)
covers the bytes of the inner object, so that torn and bit-flipped lines are detected. Non-finite
numbers are written as ``NaN`` and ``Infinity``, which Python's JSON reader accepts. A field that is
None is left out, as missing; in a list, None becomes NaN.
"""

from __future__ import annotations

import json
import math
import zlib

from infrastructure.agent_contract.transition import FieldValue, Transition

_HEAD = b'{"v":1,"crc":"'
_MIDDLE = b'","transition":'
_PAYLOAD_AT = len(_HEAD) + 8 + len(_MIDDLE)
_FIELDS = frozenset(Transition.__dataclass_fields__)
# What nearly every value is; subclasses and arrays take a slower path with the same result.
_PLAIN: frozenset[type] = frozenset({str, bool, int, float})
_TEXTS: frozenset[type] = frozenset({str})
_NUMBERS: frozenset[type] = frozenset({int, float})


class RecordError(ValueError):
    """A line cannot be read as a transition; the message gives the reason."""


def encode_record(transition: Transition) -> bytes:
    """Encode *transition* as one line, newline included.

    Arrays and tensors are converted by their ``tolist()``.

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
    """Decode a line without its newline; lists become tuples.

    Raises:
        RecordError: The line is torn, altered, of another version, or not a valid transition.
    """
    if not line.startswith(_HEAD) or not line.endswith(b"}}"):
        raise RecordError("record is torn, or not of version 1")
    payload = line[_PAYLOAD_AT:-1]
    if line[len(_HEAD) : _PAYLOAD_AT] != b"%08x%b" % (zlib.crc32(payload), _MIDDLE):
        raise RecordError("checksum does not match: record is torn or altered")
    try:
        return parse_transition(json.loads(payload))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a valid transition: {error}") from error


def parse_transition(body: object) -> Transition:
    """Build the transition that *body*, a JSON object with all of its fields, describes.

    Raises:
        ValueError: A field is missing, unknown or of the wrong type; the message names it.
    """
    if not isinstance(body, dict) or set(body) != _FIELDS:
        raise ValueError("the fields differ from those of a transition")
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
        items = dict(values).items()  # type: ignore[call-overload]  # other types raise, as wanted
    except (TypeError, ValueError):
        raise ValueError(f"{where} must map names to values, got {values!r:.80}") from None
    return {
        str(name): _field_value(where, name, value) for name, value in items if value is not None
    }


def _field_value(where: str, name: object, value: object) -> FieldValue:
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[return-value]
    if kind is list or kind is tuple:
        kinds = set(map(type, value))  # type: ignore[call-overload]
        if kinds <= _TEXTS or kinds <= _NUMBERS:
            return tuple(value)  # type: ignore[arg-type]
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        value = to_list()
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple) and None in value:
        value = [math.nan if item is None else item for item in value]
    if isinstance(value, list | tuple) and (
        all(isinstance(item, str) for item in value) or all(map(_is_number, value))
    ):
        return tuple(value)
    raise ValueError(
        f"{where}.{name} must be a number, a string, or a flat list of either, got {value!r:.80}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
