"""A place in a function where a fault can be made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agents.se_darwin.edits.edit import Assignment

Change: TypeAlias = Sequence[Assignment]
"""Assignments to slots of the syntax tree that make one fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A node and its surroundings.

    Attributes:
        node: The node.
        parent: Parent of the node.
        role: Field of the parent that contains the node.
        index: Position in that field if it is a list, else None.
        outer: Place of the parent; None if the parent is the function.
        names: Variables of the function, the most used first.
        calls: Names of functions that the function calls.
    """

    node: ast.AST
    parent: ast.AST
    role: str
    index: int | None
    outer: Place | None
    names: tuple[str, ...]
    calls: tuple[str, ...]

    def replace(self, node: ast.AST) -> Change:
        """Put *node* in place of this one."""
        return [((self.parent, self.role, self.index), node)]

    def set_field(self, name: str, value: object) -> Change:
        """Set a field of the node."""
        return [((self.node, name, None), value)]

    @property
    def block(self) -> list[ast.stmt]:
        """Statements of the block that contains this one; empty for an expression."""
        block = getattr(self.parent, self.role) if isinstance(self.node, ast.stmt) else []
        return block if isinstance(block, list) else []

    def set_block(self, block: Sequence[ast.stmt]) -> Change:
        """Replace the block that contains this statement; an empty one becomes ``pass``."""
        filled = list(block) or ([] if self.role == "orelse" else [ast.Pass()])
        return [((self.parent, self.role, None), filled)]


Rule: TypeAlias = Callable[[Place], Iterator[Change]]
"""Yields the faults of one kind at a place."""
