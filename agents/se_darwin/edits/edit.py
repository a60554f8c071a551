"""An edit: assignments to slots of the syntax tree, and tokens that describe them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Slot: TypeAlias = "tuple[ast.AST, str, int | None]"
Assignment: TypeAlias = "tuple[Slot, object]"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one node, addressed in the syntax tree of the program under repair.

    Two edits are equal if they make the same change of the same node.

    Attributes:
        node: Number of the node in breadth-first order.
        kind: One of `EDIT_KINDS`.
        old: Token that is replaced.
        new: Token that replaces it.
        line: Source line of the node.
        assign: Returns the new contents of slots; called when the edit is applied.
        path: Role of the node in its parent, then the types of its ancestors, innermost first.
    """

    node: int
    kind: str
    old: str
    new: str
    line: int = field(compare=False)
    assign: Callable[[], Sequence[Assignment]] = field(compare=False, repr=False)
    path: tuple[str, ...] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind} {self.old} -> {self.new}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """An edit that a rule proposes for the node it is given."""

    kind: str
    old: str
    new: str
    assign: Callable[[], Sequence[Assignment]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A node and the context that rules use.

    Attributes:
        node: The node.
        parent: Parent of the node.
        role: Field of the parent that contains the node.
        index: Position in that field if it is a list, else None.
        names: The function's own variables, most used first.
        strings: String and bytes constants of the function.
        returns: The function's ``return`` statements that have a value.
    """

    node: ast.AST
    parent: ast.AST
    role: str
    index: int | None
    names: tuple[str, ...]
    strings: tuple[str | bytes, ...]
    returns: tuple[ast.Return, ...]

    def replace(self, build: Callable[[], ast.AST]) -> Callable[[], Sequence[Assignment]]:
        """Return an assignment of *build*'s result to the node's slot."""
        slot = (self.parent, self.role, self.index)
        return lambda: [(slot, ast.copy_location(build(), self.node))]

    def set_field(
        self, name: str, value: object, index: int | None = None
    ) -> Callable[[], Sequence[Assignment]]:
        """Return an assignment of *value* to the node's field *name*."""
        return lambda: [((self.node, name, index), value)]


def read(slot: Slot) -> object:
    """Return the contents of *slot*."""
    owner, name, index = slot
    value = getattr(owner, name)
    return value if index is None else value[index]


def write(slot: Slot, value: object) -> None:
    """Put *value* into *slot*."""
    owner, name, index = slot
    if index is None:
        setattr(owner, name, value)
    else:
        getattr(owner, name)[index] = value


def swap(first: Slot, second: Slot) -> Callable[[], Sequence[Assignment]]:
    """Return assignments that exchange the contents of two slots."""
    return lambda: [(first, read(second)), (second, read(first))]
