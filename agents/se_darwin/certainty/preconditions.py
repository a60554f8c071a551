"""What the arguments of all recorded calls have in common, and most further inputs have too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from agents.se_darwin.certainty.changes import is_object, is_plain, read, write
from agents.se_darwin.fork_server.wire import Call, Node

LEAST_ORDERS = 20
"""Sorted arguments count as no accident if one in this many random orders would be sorted."""
LEAST_CALLS = 3

_Key = int | str


class Preconditions:
    """Arguments that are sorted, and pairs of arguments of equal length, in all recorded calls.

    A call without them may have no right result; but some testers sort by habit.

    Args:
        calls: The recorded calls.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        arguments = [dict(_lists(call)) for call in calls]
        keys = {key for argument in arguments for key in argument}
        self._sorted = {
            (key, backwards)
            for key in keys
            for backwards in (False, True)
            if _is_sorted([argument.get(key) for argument in arguments], backwards=backwards)
        }
        self._equal = [
            pair
            for pair in combinations(sorted(keys, key=str), 2)
            if _have_equal_lengths(arguments, *pair)
        ]

    def restore(self, call: Call) -> None:
        """Sort the arguments of *call* that are sorted in all recorded calls."""
        lists = dict(_lists(call))
        for key, backwards in self._sorted:
            if key in lists and (values := _values(lists[key])) is not None:
                lists[key][3][:] = [write(value) for value in sorted(values, reverse=backwards)]

    def hold(self, call: Call) -> bool:
        """Whether *call* has all of them."""
        lists = dict(_lists(call))
        ordered = all(
            (values := _values(lists[key])) is not None
            and values == sorted(values, reverse=backwards)
            for key, backwards in self._sorted
            if key in lists
        )
        return ordered and all(
            len(lists[first][3]) == len(lists[second][3])
            for first, second in self._equal
            if first in lists and second in lists
        )


def _lists(call: Call) -> Iterator[tuple[_Key, Node]]:
    """Yield the arguments that are lists or tuples, by their position or name."""
    nodes = {node[0]: node for node in call["values"]["nodes"]}
    roots, names = call["values"]["roots"], call["names"]
    for place, root in enumerate(roots):
        if isinstance(root, list) and is_object(root) and nodes[root[1]][1] in ("list", "tuple"):
            first = len(roots) - len(names)
            yield place if place < first else names[place - first], nodes[root[1]]


def _values(node: Node) -> list[Any] | None:
    """Return the items of a list of numbers, or of texts; None for others."""
    if not all(map(is_plain, node[3])):
        return None
    values = [read(part) for part in node[3]]
    kinds = {float if isinstance(value, int) else type(value) for value in values}
    is_ordered = not any(isinstance(value, float) and math.isnan(value) for value in values)
    return values if len(kinds) <= 1 and is_ordered else None


def _is_sorted(arguments: Sequence[Node | None], *, backwards: bool) -> bool:
    orders, seen = 1, set[str]()
    for node in arguments:
        values = None if node is None else _values(node)
        if values is None or values != sorted(values, reverse=backwards):
            return False
        if str(values) not in seen:
            seen.add(str(values))
            orders *= math.factorial(min(20, len(set(values))))
    return orders >= LEAST_ORDERS


def _have_equal_lengths(arguments: Sequence[dict[_Key, Node]], first: _Key, second: _Key) -> bool:
    lengths = [
        (len(argument[first][3]), len(argument[second][3]))
        for argument in arguments
        if first in argument and second in argument
    ]
    return (
        len(lengths) >= LEAST_CALLS
        and len(lengths) == len(arguments)
        and len(set(lengths)) > 1
        and all(first_length == second_length for first_length, second_length in lengths)
    )
