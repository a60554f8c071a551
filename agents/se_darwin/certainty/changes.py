"""Small changes of values in transit, by type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from agents.se_darwin.fork_server.wire import Reference

MAX_TEXT = 200

Item = list[Any]
"""An element of a container, or key and value of a mapping."""


def is_object(reference: Reference) -> bool:
    """Whether it refers to a node of the message."""
    return isinstance(reference, list) and reference[0] == "object"


def is_plain(reference: Reference) -> bool:
    """Whether it is a truth value, a number or a text, which `change_value` changes."""
    if isinstance(reference, list):
        return reference[0] in ("float", "int", "bytes")
    return reference is not None


def read(reference: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the plain value that is sent as *reference*."""
    if not isinstance(reference, list):
        return reference
    tag, text = reference
    if tag == "float":
        return float.fromhex(text)
    return int(text, 16) if tag == "int" else bytes.fromhex(text)


def write(value: Any) -> Reference:  # noqa: ANN401 - any plain value
    """Return what a plain value is sent as."""
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return ["int", hex(value)]
    plain: Reference = value
    return plain


def change_value(value: Any, others: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401 - plain
    """Return a value near *value*, or one like *others*, which are of its type.

    Args:
        value: A truth value, number, text or bytes.
        others: Values of its type that the recorded calls contain, itself included.
        rng: Random generator.
    """
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        low, high = min(others) - 1, max(others) + 1
        near = (value + 1, value - 1, value + 1, value - 1, 0, 1, -value, 2 * value)
        return rng.choice((*near, rng.randint(low, high), rng.randint(low, high)))
    if isinstance(value, float):
        near_by = (value + 1, value - 1, 0.0, -value, 2 * value, value / 2)
        return rng.choice((*near_by, rng.choice(others)))
    letters = [text[place : place + 1] for text in others for place in range(len(text))]
    change = rng.choice(_TEXT_CHANGES if letters else (_empty, _other))
    return change(value, others, letters, rng)


def _empty(text: Any, others: Sequence[Any], letters: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401
    del others, letters, rng
    return type(text)()


def _other(text: Any, others: Sequence[Any], letters: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401
    del text, letters
    return rng.choice(others)


def _twice(text: Any, others: Sequence[Any], letters: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401
    del others, letters, rng
    return (text + text)[:MAX_TEXT]


def _case(text: Any, others: Sequence[Any], letters: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401
    del others, letters, rng
    return text.swapcase()


def _reversed(text: Any, others: Sequence[Any], letters: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401
    del others, letters, rng
    return text[::-1]


def _cut(text: Any, others: Sequence[Any], letters: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401
    del others, letters
    place = rng.randrange(len(text) + 1)
    return rng.choice((text[:place], text[place:], text[:place] + text[place + 1 :]))


def _letter(text: Any, others: Sequence[Any], letters: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401
    del others
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(letters) + text[place + rng.randrange(2) :]


def _again(text: Any, others: Sequence[Any], letters: Sequence[Any], rng: Random) -> Any:  # noqa: ANN401
    del others
    return type(text)().join(rng.choice(letters) for _ in range(rng.randint(1, len(text) + 2)))


_TEXT_CHANGES = (
    *(_empty, _other, _twice, _case, _reversed),
    *(_cut, _cut, _cut, _letter, _letter, _again),
)


def change_items(tag: str, items: list[Item], rng: Random) -> list[Item]:
    """Return other contents of a container of kind *tag*, which has *items*."""
    changes: Sequence[Callable[[list[Item], Random], list[Item]]] = _ITEM_CHANGES
    if tag == "tuple" and rng.random() < 0.75:  # its places often have meanings
        changes = (_swapped,)
    return rng.choice(changes)(items, rng)


def _without(items: list[Item], rng: Random) -> list[Item]:
    place = rng.randrange(len(items))
    return items[:place] + items[place + 1 :]


def _with_one_twice(items: list[Item], rng: Random) -> list[Item]:
    place = rng.randrange(len(items) + 1)
    return [*items[:place], list(rng.choice(items)), *items[place:]]


def _swapped(items: list[Item], rng: Random) -> list[Item]:
    """Exchange two elements of one type, or two values of a mapping."""
    first, second = rng.choice(items), rng.choice(items)
    if type(first[-1]) is type(second[-1]):
        first[-1], second[-1] = second[-1], first[-1]
    return items


def _backwards(items: list[Item], rng: Random) -> list[Item]:
    del rng
    return items[::-1]


def _sorted(items: list[Item], rng: Random) -> list[Item]:
    del rng
    return sorted(items, key=_sort_key)


def _sort_key(item: Item) -> tuple[str, float, str]:
    value = read(item[0]) if is_plain(item[0]) else str(item[0])
    return type(value).__name__, value if isinstance(value, int | float) else 0.0, str(value)


def _drawn(items: list[Item], rng: Random) -> list[Item]:
    return [list(rng.choice(items)) for _ in range(rng.randint(1, len(items) + 2))]


def _longer(items: list[Item], rng: Random) -> list[Item]:
    return [*items, *_drawn(items, rng)]


def _half(items: list[Item], rng: Random) -> list[Item]:
    middle = len(items) // 2
    return rng.choice((items[:middle], items[middle:]))


def _none(items: list[Item], rng: Random) -> list[Item]:
    del items, rng
    return []


_ITEM_CHANGES = (
    _without,
    _with_one_twice,
    _swapped,
    _backwards,
    _sorted,
    _drawn,
    _longer,
    _half,
    _none,
)
