"""Further inputs of a function, made from the calls that its tests make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

from agents.se_darwin.certainty.changes import (
    change_items,
    change_value,
    is_object,
    is_plain,
    read,
    write,
)
from agents.se_darwin.certainty.preconditions import Preconditions
from agents.se_darwin.fork_server.wire import Call, Reference

_CONTAINERS = ("list", "tuple", "set", "frozenset", "deque", "iterator")
_MAPPINGS = ("dict", "OrderedDict", "Counter", "defaultdict")
_ATTEMPTS = 4  # for each input wanted
_MAX_SIZE = 20_000  # characters of a call as JSON
# Shares of inputs with a second change, with arguments of two calls, and with the preconditions.
_SECOND_CHANGE, _COMBINED, _LIKE_THE_OTHERS = 0.3, 0.1, 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramInput:
    """A call to compare programs on.

    Attributes:
        call: The call.
        origin: Position of the recorded call that it was made from.
        changes: Number of changes of that call; 0 for the call itself.
        is_usual: Whether its arguments have what those of all recorded calls have in common.
    """

    call: Call
    origin: int
    changes: int
    is_usual: bool = True


def make_inputs(calls: Sequence[Call], count: int, rng: Random) -> list[ProgramInput]:
    """Return the distinct ones of *calls*, and up to *count* more that are made from them.

    Numbers change by one, their sign, or to others in the range seen; texts and containers are cut,
    repeated, permuted, emptied, or made again of the same parts; arguments of different calls are
    combined. Objects of classes stay as they are. Most inputs keep what the arguments of all
    *calls* have in common, such as their order.

    Args:
        calls: Calls of the function, each with values of its own.
        count: Maximum number of further inputs.
        rng: Random generator.
    """
    inputs: list[ProgramInput] = []
    seen: set[str] = set()
    for origin, recorded in enumerate(calls):
        call: Call = json.loads(json.dumps(recorded))  # a copy, with lists only
        _renumber(call)
        text = json.dumps(call)
        if len(text) <= _MAX_SIZE and text not in seen:
            seen.add(text)
            inputs.append(ProgramInput(call=call, origin=origin, changes=0))
    bases, pool = list(inputs), _Pool(program_input.call for program_input in inputs)
    preconditions = Preconditions([program_input.call for program_input in inputs])
    if not bases:
        return []
    for number in range(_ATTEMPTS * count):
        if len(inputs) >= len(bases) + count:
            break
        base = bases[number % len(bases)]
        call, changes = _changed(base.call, bases, pool, rng)
        if rng.random() < _LIKE_THE_OTHERS:
            preconditions.restore(call)
            if not preconditions.hold(call):
                continue
        text = json.dumps(call)
        if len(text) <= _MAX_SIZE and text not in seen:
            seen.add(text)
            inputs.append(
                ProgramInput(
                    call=call,
                    origin=base.origin,
                    changes=changes,
                    is_usual=preconditions.hold(call),
                )
            )
    return inputs


def is_whole_domain(inputs: Sequence[ProgramInput]) -> bool:
    """Whether *inputs* are all that exist: booleans alone, also in fields of objects."""
    seen = set()
    for each in inputs:
        nodes = each.call["values"]["nodes"]
        parts = (each.call["values"]["roots"], *(node[3] for node in nodes))
        plain = tuple(value for values in parts for value in values if is_plain(value))
        if not all(type(value) is bool for value in plain):
            return False
        if any(node[1] != "instance" for node in nodes):
            return False
        seen.add(plain)
    return len(set(map(len, seen))) == 1 and len(seen) == 2 ** len(min(seen)) > 1


def _changed(
    recorded: Call, bases: Sequence[ProgramInput], pool: _Pool, rng: Random
) -> tuple[Call, int]:
    """Return a changed copy of *recorded*, and the number of its changes."""
    call, changes = deepcopy(recorded), 1 + (rng.random() < _SECOND_CHANGE)
    if rng.random() < _COMBINED:
        _combine(call, rng.choice(bases).call, rng)
        changes -= 1
    for _ in range(changes):
        _change(call, pool, rng)
    _renumber(call)
    return call, max(1, changes)


class _Pool:
    """Values without parts that the recorded calls contain, by type."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._values: dict[type, list[Any]] = {}
        for call in calls:
            for owner, index in _sites(call):
                reference = owner[index]
                if is_plain(reference):
                    value = read(reference)
                    self._values.setdefault(type(value), []).append(value)

    def of(self, kind: type) -> list[Any]:
        return self._values.get(kind, [])


def _change(call: Call, pool: _Pool, rng: Random) -> None:
    """Change one argument."""
    roots = call["values"]["roots"]
    places = [index for index, root in enumerate(roots) if _is_open(call, root)]
    if not places:
        return
    place = rng.choice(places)
    nodes = list(_nodes_below(call, roots[place]))
    containers = [node for node in nodes if node[1] in _CONTAINERS + _MAPPINGS]
    plain = [(roots, place)] if is_plain(roots[place]) else []
    for _, tag, _, parts in nodes:
        if tag in _CONTAINERS + _MAPPINGS:
            plain += [(parts, index) for index, part in enumerate(parts) if is_plain(part)]
    if containers and (not plain or rng.random() < 0.5):
        _change_container(rng.choice(containers), pool, rng)
    elif plain:
        owner, index = rng.choice(plain)
        value = read(owner[index])
        owner[index] = write(change_value(value, pool.of(type(value)), rng))


def _change_container(node: Any, pool: _Pool, rng: Random) -> None:  # noqa: ANN401 - JSON
    _, tag, _, parts = node
    width = 2 if tag in _MAPPINGS else 1
    items = [parts[index : index + width] for index in range(0, len(parts), width)]
    if items:
        items = change_items(tag, items, rng)
    elif width == 1 and (numbers := pool.of(int)):
        items = [[write(rng.choice(numbers))]]
    parts[:] = [part for item in items for part in item]


def _combine(call: Call, other: Call, rng: Random) -> None:
    """Take one argument from *other*, if both calls have the same shape."""
    own_roots, other_roots = call["values"]["roots"], other["values"]["roots"]
    if len(own_roots) != len(other_roots) or call["names"] != other["names"] or not own_roots:
        return
    place = rng.randrange(len(own_roots))
    copy = deepcopy(other["values"])
    first = 1 + max((node[0] for node in call["values"]["nodes"]), default=0)
    numbers = {node[0]: first + place for place, node in enumerate(copy["nodes"])}
    for node in copy["nodes"]:
        node[0] = numbers[node[0]]
        node[3] = [_numbered(part, numbers) for part in node[3]]
    call["values"]["nodes"] += copy["nodes"]
    own_roots[place] = _numbered(copy["roots"][place], numbers)


def _renumber(call: Call) -> None:
    """Drop the nodes that are not used, and number the others in order."""
    values = call["values"]
    used = {node[0] for root in values["roots"] for node in _nodes_below(call, root, opaque=False)}
    values["nodes"] = [node for node in values["nodes"] if node[0] in used]
    numbers = {node[0]: 2 * place for place, node in enumerate(values["nodes"])}
    values["roots"] = [_numbered(root, numbers) for root in values["roots"]]
    for node in values["nodes"]:
        node[0] = numbers[node[0]]
        node[3] = [_numbered(part, numbers) for part in node[3]]


def _numbered(reference: Any, numbers: Mapping[int, int]) -> Reference:  # noqa: ANN401 - JSON
    if not is_object(reference):
        plain: Reference = reference
        return plain
    return ["object", numbers[reference[1]]]


def _nodes_below(call: Call, root: Reference, *, opaque: bool = True) -> Iterator[Any]:
    """Nodes that *root* refers to; with *opaque*, what only other objects contain is left out."""
    by_number = {node[0]: node for node in call["values"]["nodes"]}
    pending, seen = [root], set[int]()
    while pending:
        reference = pending.pop()
        if not isinstance(reference, list) or not is_object(reference):
            continue
        node = by_number[reference[1]]
        if node[0] not in seen:
            seen.add(node[0])
            yield node
            if not opaque or node[1] in _CONTAINERS + _MAPPINGS:
                pending += node[3]


def _sites(call: Call) -> Iterator[tuple[list[Any], int]]:
    """Places of all references that may be changed."""
    roots = call["values"]["roots"]
    for place, root in enumerate(roots):
        yield roots, place
        for _, tag, _, parts in _nodes_below(call, root):
            if tag in _CONTAINERS + _MAPPINGS:
                yield from ((parts, index) for index in range(len(parts)))


def _is_open(call: Call, root: Reference) -> bool:
    """Whether an argument may be changed."""
    return is_plain(root) or any(
        node[1] in _CONTAINERS + _MAPPINGS for node in _nodes_below(call, root)
    )
