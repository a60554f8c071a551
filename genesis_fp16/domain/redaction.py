"""What of a setting may be shown: no credentials and no control characters."""

from __future__ import annotations

import json
import re

HIDDEN = "***"
_SECRET_WORDS = ("secret", "token", "password", "passwd", "passphrase", "key", "credential")
_ASSIGNED = re.compile(  # password=..., "api_key": ...; bounded, since it scans any text
    rf"((?:{'|'.join(_SECRET_WORDS)})[\w-]{{0,40}}[\"'\\]{{0,2}}\s{{0,5}}[=:]).*",
    re.IGNORECASE | re.DOTALL,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}")


def is_secret(name: str) -> bool:
    """Whether the value of an agent's setting of that name must not be shown."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def shown(name: str, value: object) -> str:
    """*value* of the setting *name* as one line of text without credentials.

    Hidden are values of secret names, also of keys at any depth of JSON, credentials in a URL,
    what follows a secret name and ``=`` or ``:``, and JSON that cannot be parsed.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") and not is_secret(name):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return HIDDEN
    redacted = _redact(name, value)
    if isinstance(redacted, list | dict):
        redacted = json.dumps(redacted, ensure_ascii=False, default=str)
    return visible(str(redacted))


def visible(text: str) -> str:
    """*text* on one line: characters that a terminal obeys or hides are written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def without_userinfo(text: str) -> str:
    """*text* with ``***`` for all that precedes the last ``@``, but for the scheme of a URL."""
    head, at, tail = text.rpartition("@")
    if ":" not in head:
        return text
    scheme, separator, _ = head.partition("://")
    known = f"{scheme}{separator}" if separator and _SCHEME.fullmatch(scheme) else ""
    return f"{known}{HIDDEN}{at}{tail}"


def _redact(name: str, value: object) -> object:
    if is_secret(name):
        return HIDDEN
    if isinstance(value, dict):
        return {_redact("", str(key)): _redact(str(key), part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact("", part) for part in value]
    if isinstance(value, str):
        return _ASSIGNED.sub(rf"\1{HIDDEN}", without_userinfo(value))
    return value
