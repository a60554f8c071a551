"""Further expressions like given ones, with other literals of the same shape."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from random import Random
from typing import AnyStr

_Pool = dict[tuple[str, object], list[ast.expr]]
_CHANGED = 0.6
_LONGEST = 600


def varied(expressions: Sequence[str], count: int, rng: Random) -> list[str]:
    """Return up to *count* new expressions; each is one of *expressions* with other literals.

    Literal arguments of calls are changed, or replaced by those of the same place in another
    expression. Sorted lists stay sorted, numbers keep their sign, tables their shape.

    Args:
        expressions: Expressions that contain calls.
        count: Maximum number.
        rng: Random generator.
    """
    trees = [ast.parse(each, mode="eval").body for each in expressions]
    pool: _Pool = {}
    for tree in trees:
        for place, parent, index in _places(tree):
            pool.setdefault(place, []).append(_get(parent, index))
    made: dict[str, None] = {}
    if not pool:
        return []
    for _ in range(8 * count):
        tree = copy.deepcopy(rng.choice(trees))
        for place, parent, index in list(_places(tree)):
            if rng.random() < _CHANGED:
                given = rng.choice(pool[place]) if rng.random() < 0.4 else _get(parent, index)
                _set(parent, index, _changed(given, rng) if rng.random() < 0.8 else given)
        text = ast.unparse(tree)
        if text not in expressions and len(text) < _LONGEST:
            made[text] = None
        if len(made) == count:
            break
    return list(made)


def _places(
    tree: ast.expr,
) -> Iterator[tuple[tuple[str, object], ast.Call, int | str]]:
    """Yield the literal arguments of the calls in *tree*: place, call, and index or keyword."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func) if not isinstance(node.func, ast.Call) else "()"
            for index, argument in enumerate(node.args):
                if _is_literal(argument):
                    yield (name, index), node, index
            for keyword in node.keywords:
                if keyword.arg and _is_literal(keyword.value):
                    yield (name, keyword.arg), node, keyword.arg


def _get(call: ast.Call, index: int | str) -> ast.expr:
    if isinstance(index, int):
        return call.args[index]
    return next(each.value for each in call.keywords if each.arg == index)


def _set(call: ast.Call, index: int | str, value: ast.expr) -> None:
    if isinstance(index, int):
        call.args[index] = value
    for keyword in call.keywords:
        if keyword.arg == index:
            keyword.value = value


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return False
    return True


def _changed(node: ast.expr, rng: Random) -> ast.expr:
    value = _changed_value(ast.literal_eval(node), rng)
    return ast.parse(repr(value), mode="eval").body


def _changed_value(value: object, rng: Random) -> object:
    made = value
    if isinstance(value, bool):
        made = not value
    elif isinstance(value, int):
        made = _changed_number(value, rng)
    elif isinstance(value, float):
        made = round(value * rng.choice((0.5, 0.9, 1.1, 2.0)) + rng.choice((0.0, 0.25)), 6)
    elif isinstance(value, str):
        made = _changed_text(value, rng)
    elif isinstance(value, list | tuple):
        made = _changed_items(value, rng)
    elif isinstance(value, bytes):
        made = _changed_text(value, rng)
    elif isinstance(value, dict):
        made = {
            key: _changed_value(each, rng) if rng.random() < 0.5 else each
            for key, each in value.items()
            if rng.random() < 0.8
        }
    return made


def _changed_number(value: int, rng: Random) -> int:
    sign = -1 if value < 0 else 1
    size = abs(value)
    new = rng.choice((size - 2, size - 1, size + 1, size + 2, size // 2, rng.randint(0, size + 3)))
    return sign * max(0, min(new, 2 * size + 3))


def _changed_text(value: AnyStr, rng: Random) -> AnyStr:
    first, last = sorted((rng.randint(0, len(value)), rng.randint(0, len(value))))
    middle = value[first:last]
    return rng.choice(
        (value[:first] + value[last:], value[:last] + middle + value[last:], middle, value[::-1])
    )


def _changed_items(value: list[object] | tuple[object, ...], rng: Random) -> object:
    items = list(value)
    is_table = any(isinstance(item, list | tuple) for item in items)
    was_sorted = _is_sorted(items)
    for index, item in enumerate(items):
        if rng.random() < 0.4:
            items[index] = _same_length(item, rng) if is_table else _changed_value(item, rng)
    if not is_table and items:
        position = rng.randrange(len(items))
        action = rng.choice(("drop", "repeat", "swap", "keep"))
        if action == "drop":
            del items[position]
        elif action == "repeat":
            items.insert(position, items[position])
        elif action == "swap" and not was_sorted:
            items[position], items[0] = items[0], items[position]
    if was_sorted and len(value) > 1:
        items = sorted(items)  # type: ignore[type-var]
    return tuple(items) if isinstance(value, tuple) else items


def _same_length(item: object, rng: Random) -> object:
    if isinstance(item, list | tuple):
        made = [_changed_value(each, rng) if rng.random() < 0.4 else each for each in item]
        return tuple(made) if isinstance(item, tuple) else made
    return _changed_value(item, rng)


def _is_sorted(items: list[object]) -> bool:
    try:
        return items == sorted(items)  # type: ignore[type-var]
    except TypeError:
        return False
