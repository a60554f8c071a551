"""The text of a program after changes in one function: what did not change is not written again."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

from agents.se_darwin.edits.edit import BLOCKS, Assignment, Block, Slot, read, write
from agents.se_darwin.edits.nodes import FunctionNode

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class ProgramText:
    """Writes the statements that changed.

    Args:
        source: The program in normal form.
        definition: The function, in the tree that *source* was parsed to.
    """

    def __init__(self, source: str, definition: FunctionNode) -> None:
        self._lines, self._definition = source.split("\n"), definition
        self._first = definition.body[0]
        self._slots: dict[int, Slot] = {}
        self._statements: dict[tuple[int, str, int | None], ast.stmt] = {}
        for node in ast.walk(definition):
            for role, value in ast.iter_fields(node):
                for index, part in enumerate(value) if isinstance(value, list) else [(None, value)]:
                    if isinstance(part, ast.AST):
                        self._slots[id(part)] = node, role, index
                    if isinstance(part, ast.stmt) and self._stands_alone(node, role, part):
                        self._statements[id(node), role, index] = part

    def with_changes(self, changes: Iterable[Assignment], undone: list[Assignment]) -> str | None:
        """Return the program after *changes*, which have been made in its tree.

        Each `Block` there is replaced by its statements; how to undo that is added to *undone*.

        Returns:
            The text; None if the whole function must be written.
        """
        changed: dict[tuple[int, int], Slot] = {}
        has_inner = False
        for place, value in changes:
            slot = self._slot_around(place)
            if slot is None:
                return None
            was = self._statement(slot)
            changed[was.lineno - 1, was.end_lineno or was.lineno] = slot
            has_inner = has_inner or (slot != place and isinstance(value, Block))
        spans = sorted(changed, key=lambda span: (span[0], -span[1]))
        has_inner = has_inner or any(after < stop for (_, stop), (after, _) in pairwise(spans))
        lines: list[str] = []
        done = 0
        for start, stop in spans:
            if start < done:
                continue  # within the one before
            slot = changed[start, stop]
            now = read(slot)
            statements = list(_flat([now])) if isinstance(now, ast.stmt) else []
            for inner, block in chain(*map(flattened, statements)) if has_inner else ():
                undone.append((inner, read(inner)))
                write(inner, block)
            new_lines = self._written(slot, statements)
            if new_lines is None:
                return None
            lines += [*self._lines[done:start], *new_lines]
            done = stop
        return "\n".join([*lines, *self._lines[done:]])

    def _stands_alone(self, owner: ast.AST, role: str, statement: ast.stmt) -> bool:
        """Whether the text of *statement* depends on nothing around it."""
        if role not in BLOCKS or (role == "orelse" and isinstance(owner, ast.If)):
            return False  # it may be an `elif`, or become one
        if isinstance(statement, _DEFINITIONS):
            return False  # written after an empty line
        if isinstance(owner, _DEFINITIONS) and owner is not self._definition:
            return False  # the first one may be a docstring
        return statement is not self._first or not _is_text(statement)

    def _statement(self, slot: Slot) -> ast.stmt:
        owner, role, index = slot
        return self._statements[id(owner), role, index]

    def _slot_around(self, slot: Slot) -> Slot | None:
        """Return *slot*, or that of the innermost statement around it that stands alone."""
        owner, role, index = slot
        while (id(owner), role, index) not in self._statements:
            if id(owner) not in self._slots:
                return None
            owner, role, index = self._slots[id(owner)]
        return owner, role, index

    def _written(self, slot: Slot, statements: Sequence[ast.stmt]) -> list[str] | None:
        """Return the lines of *statements*, which are in *slot* now.

        None if they depend on what is around them.
        """
        owner, role, _ = slot
        block = list(_flat(getattr(owner, role)))
        if not block:
            return None  # it needs `pass`, or its head goes
        if owner is self._definition and block[0] is not self._first and _is_text(block[0]):
            return None  # another docstring
        if any(isinstance(statement, _DEFINITIONS) for statement in statements):
            return None
        text = "\n".join(map(ast.unparse, statements))
        if '"""' in text or "'''" in text:
            return None  # the lines of a text must not be indented
        before = self._statement(slot).col_offset * " "
        return [line and before + line for line in text.split("\n")] if text else []


def flattened(root: ast.AST) -> Iterator[Assignment]:
    """Yield each block that contains a `Block`, with the statements of it in its place."""
    for node in ast.walk(root):
        for role in BLOCKS:
            block = getattr(node, role, None)
            if isinstance(block, list) and any(isinstance(statement, Block) for statement in block):
                flat = list(_flat(block))
                yield (node, role, None), flat if flat or role != "body" else [ast.Pass()]


def _flat(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        if isinstance(statement, Block):
            yield from _flat(statement.body)
        else:
            yield statement


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
