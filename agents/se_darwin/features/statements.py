"""Where in a function an edit is: its statement, and how far that is from the result."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from agents.se_darwin.edits.nodes import ForNode, FunctionNode
from agents.se_darwin.features.variables import GROWING_METHODS

FARTHEST = 5  # assignments and conditions: the distance of all that is farther, or not connected


class Statements:
    """The statement of each node of a function, and its distance from the function's result.

    Args:
        definition: The function.
        roles: Role of each variable; see `agents.se_darwin.features.variables`.

    Attributes:
        places: Kind of the statement and part of it, such as ``While test`` or ``Assign total``, by
            ``id`` of the node.
        loops: Number of loops around the node, by its ``id``; the condition of a ``while`` is
            inside its loop.
    """

    def __init__(self, definition: FunctionNode, roles: Mapping[str, str]) -> None:
        self._roles = roles
        self.places: dict[int, str] = {}
        self.loops: dict[int, int] = {}
        self._distances: dict[int, int] = {}
        self._owners: dict[int, ast.stmt] = {}
        self._writers: defaultdict[str, list[ast.stmt]] = defaultdict(list)
        self._around: dict[int, tuple[ast.stmt, ...]] = {}
        self._results: list[ast.stmt] = []
        for statement in definition.body:
            self._visit(statement, statement, 0)
        self._measure(definition)

    def distance(self, node: ast.AST) -> int:
        """Return how many assignments and conditions lie between *node* and the result.

        From 0 for a statement that returns or yields, to `FARTHEST`.
        """
        owner = self._owners.get(id(node))
        return self._distances.get(id(owner), FARTHEST)

    def _visit(self, node: ast.AST, owner: ast.stmt, loops: int, place: str = "") -> None:
        if isinstance(node, ast.stmt):
            owner = node
        self._owners[id(node)] = owner
        self.loops[id(node)] = loops
        self.places[id(node)] = place or self._describe(owner, "")
        inner = loops + isinstance(node, ForNode | ast.While)
        for role, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    self._visit(child, child, inner)
                elif isinstance(child, ast.AST):
                    within = self._describe(owner, role) if node is owner else place
                    self._visit(child, owner, loops + (node is owner and role == "test"), within)

    def _describe(self, statement: ast.stmt, role: str) -> str:
        kind = type(statement).__name__
        if isinstance(statement, ast.Assign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            name = getattr(targets[0], "id", type(targets[0]).__name__)
            return f"{kind} {self._roles.get(name, name)}"
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            return f"call {getattr(statement.value.func, 'attr', 'function')}"
        return f"{kind} {role}".strip()

    def _measure(self, definition: FunctionNode) -> None:
        """Search backwards from the results for the statements that they depend on."""
        self._record(definition, ())
        wanted = self._results
        for distance in range(FARTHEST):
            following: list[ast.stmt] = []
            for statement in wanted:
                if id(statement) not in self._distances:
                    self._distances[id(statement)] = distance
                    following += self._around[id(statement)]
                    for name in _read(statement):
                        following += self._writers[name]
            wanted = following

    def _record(self, node: ast.AST, around: tuple[ast.stmt, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._around[id(child)] = around
                for name in _written(child):
                    self._writers[name].append(child)
                if isinstance(child, ast.Return) or _yields(child):
                    self._results.append(child)
                self._record(child, (*around, child))
            elif not isinstance(child, ast.expr):
                self._record(child, around)


def _written(statement: ast.stmt) -> Iterator[str]:
    """Names of the variables that *statement* sets or changes, without its inner statements."""
    for node in _own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name):
                yield node.value.id
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.attr in GROWING_METHODS
        ):
            yield node.func.value.id


def _read(statement: ast.stmt) -> Iterator[str]:
    for node in _own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


def _yields(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(
        statement.value, ast.Yield | ast.YieldFrom
    )


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, but not those of its inner statements."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield from _own(child)
