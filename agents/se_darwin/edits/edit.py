"""What an edit is: a few slots of the tree given other contents, and the words to describe it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Slot: TypeAlias = "tuple[ast.AST, str, int | None]"
Assignment: TypeAlias = "tuple[Slot, object]"


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one node, addressed in the tree of the program that is being repaired.

    Two edits are equal if they make the same change of the same node.

    Attributes:
        node: Number of the node, breadth first.
        kind: One of `EDIT_KINDS`.
        old: What stood there, as a token.
        new: What will stand there, as a token.
        line: Source line of the node.
        assign: New contents of slots, read when the edit is applied.
        path: The node's ancestors' types, innermost first, and its role in its parent.
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
    """What a rule says may be done to the node it looks at."""

    kind: str
    old: str
    new: str
    assign: Callable[[], Sequence[Assignment]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A node and what a rule may know about its surroundings.

    Attributes:
        node: The node.
        parent: The node that holds it.
        role: The parent's field that holds it.
        index: Its position there, if the field is a list.
        names: The function's own variables, most used first.
        strings: String and bytes constants of the function.
        returns: Its ``return`` statements that have a value.
    """

    node: ast.AST
    parent: ast.AST
    role: str
    index: int | None
    names: tuple[str, ...]
    strings: tuple[str | bytes, ...]
    returns: tuple[ast.Return, ...]

    def replace(self, build: Callable[[], ast.AST]) -> Callable[[], Sequence[Assignment]]:
        """Put what *build* makes where the node is, when applied."""
        slot = (self.parent, self.role, self.index)
        return lambda: [(slot, ast.copy_location(build(), self.node))]

    def set_field(
        self, name: str, value: object, index: int | None = None
    ) -> Callable[[], Sequence[Assignment]]:
        """Give the node's own field *name* another value, when applied."""
        return lambda: [((self.node, name, index), value)]


def read(slot: Slot) -> object:
    """What *slot* holds."""
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
    """Exchange the contents of two slots, when applied."""
    return lambda: [(first, read(second)), (second, read(first))]
