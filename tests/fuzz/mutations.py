"""Inputs that resemble valid ones: seeds whose bytes, or whose JSON values, are changed."""

import json
import random

ODD_BYTES = (
    *(b"\x00", b"\xff", b"\xed\xa0\x80", b"\n", b"\r\n", b'"', b"\\u0000", b"\\ud800", b"{", b"}"),
    *(
        b"[" * 5000,
        b'{"a":' * 2000,
        b"1" * 5000,
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"-0.0",
        b" " * 999,
    ),
)
ODD_VALUES = (
    *(None, True, -1, 0, 2**63, 10**400, -0.0, 1e308, float("nan"), float("inf"), "", "\x00"),
    *("\ud800", "a" * 70_000, [], {}, [[]], {"": None}, [None] * 2000),
)


def mutate(rng: random.Random, seeds: list[bytes]) -> bytes:
    """One of *seeds* with one to four changes."""
    content = rng.choice(seeds)
    for _ in range(rng.randint(1, 4)):
        in_json = rng.random() < 0.5
        content = _in_json(rng, content) if in_json else _in_bytes(rng, content, seeds)
    return content


def _in_bytes(rng: random.Random, content: bytes, seeds: list[bytes]) -> bytes:
    first, second = sorted(rng.randint(0, len(content)) for _ in range(2))
    kind = rng.randrange(5)
    if kind == 0:
        return content[:first] + rng.choice(ODD_BYTES) + content[second:]
    if kind == 1:
        return content[:first] + content[second:]
    if kind == 2:
        return content[:second] + content[first:]
    if kind == 3:
        return content[:first] + rng.choice(seeds)[first:]
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _in_json(rng: random.Random, content: bytes) -> bytes:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content
    document = _with_odd_value(rng, document)
    return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")


def _with_odd_value(rng: random.Random, value: object) -> object:
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            return {name: part for name, part in value.items() if name != key}
        name = rng.choice(["", "\x00", "a" * 9999]) if rng.random() < 0.1 else key
        return {**value, name: _with_odd_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], _with_odd_value(rng, value[index]), *value[index + 1 :]]
    return rng.choice(ODD_VALUES)
