"""Values of an agent's fields become JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping


def plain(value: object, field: str) -> object:
    """Return *value* in the types of JSON; NaN, which means missing, becomes null.

    Args:
        value: None, text, number, boolean, list, tuple or mapping of these, or an object with
            ``tolist()``, as NumPy's scalars and arrays have it.
        field: Name for the message.

    Raises:
        TypeError: A value, or the key of a mapping, is of another type.
        ValueError: A number is infinite, or a value contains itself.
    """
    try:
        return _plain(value, field)
    except RecursionError:
        raise ValueError(f"{field} contains itself, or is nested too deeply") from None


def _plain(value: object, field: str) -> object:
    if isinstance(value, str):
        return well_formed(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"{field} must be finite, or NaN if missing, got {value}")
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {_key(key, field): _plain(each, f"{field}.{key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{field}[{number}]") for number, each in enumerate(value)]
    if callable(tolist := getattr(value, "tolist", None)):
        return _plain(tolist(), field)
    raise TypeError(
        f"{field} must be text, a number, a boolean, None, or a list or mapping of these, "
        f"got {type(value).__name__}"
    )


def _key(key: object, field: str) -> str:
    if isinstance(key, str):
        return well_formed(key)
    raise TypeError(f"the keys of {field} must be text, got {key!r}")


def well_formed(text: str) -> str:
    """Return *text* with U+FFFD for what UTF-8 cannot express.

    Names of files that are not UTF-8, and texts that quote them, hold lone surrogates, with which
    the predictor would refuse the whole report.
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain_mapping(value: object, field: str) -> dict[str, object]:
    """Return a mapping of fields in the types of JSON; see `plain`.

    A mapping in it becomes fields of its own, such as ``metrics.loss``, as in records of files.

    Raises:
        TypeError: It is not a mapping.
        ValueError: Two fields get the same name.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{field} must be a mapping of names to values, got {type(value).__name__}")
    fields: dict[str, object] = {}
    for key, each in value.items():
        name, sent = _key(key, field), plain(each, f"{field}.{key}")
        for inner, leaf in _leaves(name, sent) if isinstance(sent, dict) else ((name, sent),):
            if inner in fields:
                raise ValueError(f"{field} has the field {inner!r} twice")
            fields[inner] = leaf
    return fields


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}", each)
    else:
        yield name, value


def finite(value: float, field: str) -> float:
    """Return *value* as a number.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not finite.
    """
    number = plain(value, field)
    if isinstance(number, bool) or not isinstance(number, (int, float, type(None))):
        raise TypeError(f"{field} must be a number, got {type(value).__name__}")
    if number is None:
        raise ValueError(f"{field} must be finite, got {value}")
    return number


def encode(value: object) -> bytes:
    """Return JSON in one line of ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
