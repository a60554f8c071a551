"""An edit: assignments to slots of the syntax tree, and tokens that describe them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agents.se_darwin.edits.nodes import ForNode, FunctionNode
from agents.se_darwin.edits.scope import Scope

Slot: TypeAlias = "tuple[ast.AST, str, int | None]"
Assignment: TypeAlias = "tuple[Slot, object]"


BLOCKS = ("body", "orelse", "finalbody")


class Block(ast.stmt):
    """Any number of statements in the place of one, so that others keep their positions.

    `EditSpace.program` replaces it by its statements before it writes the program.
    """

    _fields = ("body",)

    def __init__(self, body: list[ast.stmt]) -> None:
        super().__init__()
        self.body = body


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
        inserts: Whether it puts statements beside the node, and so goes with others at this node.
    """

    node: int
    kind: str
    old: str
    new: str
    line: int = field(compare=False)
    assign: Callable[[], Sequence[Assignment]] = field(compare=False, repr=False)
    path: tuple[str, ...] = field(compare=False, repr=False)
    inserts: bool = field(default=False, compare=False, repr=False)

    def goes_with(self, others: Iterable[Edit]) -> bool:
        """Whether it can be added to *others*: all that replace something are at other nodes."""
        return self.inserts or all(edit.inserts or edit.node != self.node for edit in others)

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind} {self.old} -> {self.new}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """An edit that a rule proposes for the node it is given."""

    kind: str
    old: str
    new: str
    assign: Callable[[], Sequence[Assignment]]
    inserts: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A node and the context that rules use.

    Attributes:
        node: The node.
        parent: Parent of the node.
        role: Field of the parent that contains the node.
        index: Position in that field if it is a list, else None.
        ancestors: Parent, its parent and so on, up to the function.
        scope: Ingredients that the function offers.
    """

    node: ast.AST
    parent: ast.AST
    role: str
    index: int | None
    ancestors: tuple[ast.AST, ...]
    scope: Scope

    @property
    def slot(self) -> Slot:
        """Slot that contains the node."""
        return self.parent, self.role, self.index

    @property
    def is_statement(self) -> bool:
        """Whether the node is a statement in a block."""
        return isinstance(self.node, ast.stmt) and self.role in BLOCKS and self.index is not None

    @property
    def block(self) -> list[ast.stmt]:
        """Statements of the block that contains the node, a statement."""
        block: list[ast.stmt] = getattr(self.parent, self.role)
        return block

    @property
    def is_last(self) -> bool:
        """Whether the node is the last statement of its block."""
        return self.index == len(self.block) - 1

    @property
    def is_first_of_function(self) -> bool:
        """Whether the node is the function's first statement after the docstring."""
        if not self.is_statement or not isinstance(self.parent, FunctionNode):
            return False
        documented = ast.get_docstring(self.parent, clean=False) is not None
        return self.index == documented

    @property
    def in_loop(self) -> bool:
        """Whether ``break`` and ``continue`` are allowed at the statement."""
        inside: ast.AST = self.node
        for ancestor in self.ancestors:
            if isinstance(ancestor, ForNode | ast.While):
                return inside not in ancestor.orelse
            if isinstance(ancestor, FunctionNode):
                return False
            inside = ancestor
        return False

    def replace(self, build: Callable[[], ast.AST]) -> Callable[[], Sequence[Assignment]]:
        """Return an assignment of *build*'s result to the node's slot."""
        return lambda: [(self.slot, ast.copy_location(build(), self.node))]

    def replace_text(self, text: str) -> Callable[[], Sequence[Assignment]]:
        """Return an assignment of the expression *text* to the node's slot."""
        return self.replace(lambda: parse_expression(text))

    def put(
        self, *, before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> Callable[[], Sequence[Assignment]]:
        """Return an assignment that puts statements before and after the node, a statement."""

        def assign() -> Sequence[Assignment]:
            body = [*_parse(before), statement_in(self.slot), *_parse(after)]
            return [(self.slot, Block(body))]

        return assign

    def insertion(
        self, kind: str, *, before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> Proposal:
        """Propose to `put` statements before or after the node."""
        text = "; ".join((*before, *after)).replace("\n    ", " ")
        return Proposal(
            kind=kind,
            old="before" if before else "after",
            new=text,
            assign=self.put(before=before, after=after),
            inserts=True,
        )

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


def statement_in(slot: Slot) -> ast.stmt:
    """Return the statement in *slot*."""
    statement = read(slot)
    if not isinstance(statement, ast.stmt):
        raise TypeError(f"the slot {slot[1:]} holds {statement!r}, not a statement")
    return statement


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


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def _parse(statements: Sequence[str]) -> list[ast.stmt]:
    return [statement for text in statements for statement in ast.parse(text).body]
