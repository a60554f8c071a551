"""Where two versions of a function differ: the smallest set of changed places."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeAlias

Field: TypeAlias = "tuple[ast.AST, str]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """A place at which two versions differ.

    Attributes:
        owner: Node of the old version whose field changes.
        role: The field.
        index: Position in the field if it is a list, else None.
        old: What is there; None if something is inserted.
        new: What replaces it; None if something is removed.
        action: ``replaced``, ``wrapped``, ``unwrapped``, ``inserted`` or ``removed``.
    """

    owner: ast.AST
    role: str
    index: int | None
    old: object
    new: object
    action: str


class Comparison:
    """Compares two syntax trees."""

    def __init__(self) -> None:
        self._dumps: dict[int, str] = {}
        self._costs: dict[tuple[int, int], tuple[float, list[Region]]] = {}

    def regions(self, old: ast.AST, new: ast.AST) -> list[Region]:
        """Return the changes that turn *old* into *new*, few and small."""
        return self._fields(old, new)[1]

    def _dump(self, node: object) -> str:
        if not isinstance(node, ast.AST):
            return repr(node)
        if id(node) not in self._dumps:
            self._dumps[id(node)] = ast.dump(node)
        return self._dumps[id(node)]

    def _size(self, node: object) -> float:
        return 0.002 * len(self._dump(node))

    def _fields(self, old: ast.AST, new: ast.AST) -> tuple[float, list[Region]]:
        cost, found = 0.0, list[Region]()
        for role in old._fields:
            before, after = getattr(old, role, None), getattr(new, role, None)
            if role in ("ctx", "type_comment", "kind"):
                continue
            if isinstance(before, list) and isinstance(after, list):
                part = self._lists(old, role, before, after)
            else:
                part = self._pair(old, role, None, before, after)
            cost, found = cost + part[0], found + part[1]
        return cost, found

    def _pair(
        self, owner: ast.AST, role: str, index: int | None, old: object, new: object
    ) -> tuple[float, list[Region]]:
        if self._dump(old) == self._dump(new):
            return 0.0, []
        if isinstance(old, ast.AST) and isinstance(new, ast.AST):
            key = id(old), id(new)
            if key not in self._costs:
                self._costs[key] = self._nodes(owner, role, index, old, new)
            return self._costs[key]
        action = "inserted" if old is None else "removed" if new is None else "replaced"
        region = Region(owner=owner, role=role, index=index, old=old, new=new, action=action)
        return 1 + self._size(old) + self._size(new), [region]

    def _nodes(
        self, owner: ast.AST, role: str, index: int | None, old: ast.AST, new: ast.AST
    ) -> tuple[float, list[Region]]:
        sizes = self._size(old), self._size(new)
        is_atom = isinstance(old, ast.Name | ast.Constant | ast.operator | ast.cmpop)
        base = 1.0 if is_atom else 1.9 if type(old) is type(new) else 1.2
        cost, action = base + sum(sizes), "replaced"
        if any(self._dump(part) == self._dump(old) for part in ast.walk(new)):
            cost, action = 1 + sizes[1] - sizes[0], "wrapped"
        elif any(self._dump(part) == self._dump(new) for part in ast.walk(old)):
            cost, action = 1 + sizes[0] - sizes[1], "unwrapped"
        region = Region(owner=owner, role=role, index=index, old=old, new=new, action=action)
        best: tuple[float, list[Region]] = (cost, [region])
        if type(old) is type(new) and not is_atom:
            below = self._fields(old, new)
            if below[0] < best[0]:
                best = below
        return best

    def _lists(
        self, owner: ast.AST, role: str, old: list[ast.AST], new: list[ast.AST]
    ) -> tuple[float, list[Region]]:
        start = 0
        while start < min(len(old), len(new)) and self._dump(old[start]) == self._dump(new[start]):
            start += 1
        end = 0
        while end < min(len(old), len(new)) - start and self._dump(old[-1 - end]) == self._dump(
            new[-1 - end]
        ):
            end += 1
        before, after = old[start : len(old) - end], new[start : len(new) - end]
        if len(before) * len(after) > 200:
            return 99.0, []
        table: list[list[tuple[float, list[Region]]]] = [
            [(0.0, [])] * (len(after) + 1) for _ in range(len(before) + 1)
        ]
        for i in range(len(before) + 1):
            for j in range(len(after) + 1):
                options = []
                if i:
                    cost, found = table[i - 1][j]
                    gone = Region(
                        owner=owner,
                        role=role,
                        index=start + i - 1,
                        old=before[i - 1],
                        new=None,
                        action="removed",
                    )
                    options.append((cost + 1 + self._size(before[i - 1]), [*found, gone]))
                if j:
                    cost, found = table[i][j - 1]
                    made = Region(
                        owner=owner,
                        role=role,
                        index=start + i,
                        old=None,
                        new=after[j - 1],
                        action="inserted",
                    )
                    options.append((cost + 1 + self._size(after[j - 1]), [*found, made]))
                if i and j:
                    cost, found = table[i - 1][j - 1]
                    pair = self._pair(owner, role, start + i - 1, before[i - 1], after[j - 1])
                    options.append((cost + pair[0], found + pair[1]))
                if options:
                    table[i][j] = min(options, key=lambda option: option[0])
        return table[-1][-1]
