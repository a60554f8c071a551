"""Apply a repair to the author's own source text, keeping comments and layout."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from agents.se_darwin.edits.edit import Slot, write


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    """A node to replace: its slot, the node there now, and the new node."""

    slot: Slot
    old: ast.expr | ast.stmt
    new: ast.expr | ast.stmt


def rewrite(text: str, repaired: str) -> str:
    """Return *text* with minimal changes so that it has the syntax tree of *repaired*.

    Comments, blank lines and layout stay where nothing changed. If *text* cannot be changed in
    place, *repaired* itself is returned.

    Args:
        text: Program as its author wrote it.
        repaired: Repaired program, in any layout.
    """
    old, new = ast.parse(text), ast.parse(repaired)
    line_end = "\r\n" if "\r\n" in text else "\n"
    repaired = repaired.replace("\n", line_end)
    changes = _changes_below(old, new)
    if changes is None:
        return repaired
    offsets = [0]
    data = text.encode()
    for line in data.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    for change in sorted(changes, key=lambda change: (-change.old.lineno, -change.old.col_offset)):
        start = offsets[change.old.lineno - 1] + change.old.col_offset
        end = offsets[(change.old.end_lineno or 0) - 1] + (change.old.end_col_offset or 0)
        write(change.slot, change.new)
        expected = ast.dump(old)
        for body in _spellings(change.new):
            changed = data[:start] + body.replace("\n", line_end).encode() + data[end:]
            if _dump(changed) == expected:
                data = changed
                break
        else:
            return repaired
    return data.decode()


def _spellings(node: ast.expr | ast.stmt) -> Iterator[str]:
    """Yield the source of *node*; of an expression also with parentheses around it."""
    text = ast.unparse(node)
    yield text
    if isinstance(node, ast.expr):
        yield f"({text})"


def _dump(program: bytes) -> str | None:
    """Return the syntax tree as text; None if *program* does not parse."""
    try:
        return ast.dump(ast.parse(program))
    except SyntaxError:
        return None


def _changes(slot: Slot, old: object, new: object) -> list[_Change] | None:
    """Return the smallest changes that turn *old* into *new*; None if the parent must change.

    The parent must change if *old* is neither an expression nor a statement, since only these
    have a position in the text.
    """
    if not isinstance(old, ast.AST) or not isinstance(new, ast.AST):
        return [] if old == new and type(old) is type(new) else None
    if ast.dump(old) == ast.dump(new):
        return []
    below = None
    if type(old) is type(new):
        below = _changes_below(old, new)
    if below is not None:
        return below
    if isinstance(old, ast.expr | ast.stmt) and isinstance(new, ast.expr | ast.stmt):
        return [_Change(slot=slot, old=old, new=new)]
    return None


def _changes_below(old: ast.AST, new: ast.AST) -> list[_Change] | None:
    """Return the changes inside *old*; None if *old* itself must change."""
    found: list[_Change] = []
    for name in old._fields:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, list) and isinstance(after, list):
            if len(before) != len(after):
                return None
            parts = [
                _changes((old, name, index), *pair)
                for index, pair in enumerate(zip(before, after, strict=True))
            ]
        else:
            parts = [_changes((old, name, None), before, after)]
        for part in parts:
            if part is None:
                return None
            found += part
    return found
