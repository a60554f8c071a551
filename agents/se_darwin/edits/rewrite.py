"""Apply a repair to the author's own source text, keeping comments and layout."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from agents.se_darwin.edits.edit import Slot, write
from agents.se_darwin.edits.nodes import ForNode, WithNode

_BLOCKS = ("body", "orelse", "finalbody")
_ATOMS = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    """A node to replace: its slot, the node there now, and the new node."""

    slot: Slot
    old: ast.expr | ast.stmt
    new: ast.expr | ast.stmt

    @property
    def place(self) -> tuple[int, int, bool, int]:
        return self.old.lineno, self.old.col_offset, True, 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _LineChange:
    """Statements of a block to replace by any number of others, all on lines of their own.

    Attributes:
        block: Owner and role of the block.
        first: Position of the first replaced statement in the block.
        old: Statements to remove.
        new: Statements to insert.
        line: First line that is removed, or the line before which *new* is inserted.
    """

    block: tuple[ast.AST, str]
    first: int
    old: Sequence[ast.stmt]
    new: Sequence[ast.stmt]
    line: int

    @property
    def place(self) -> tuple[int, int, bool, int]:
        """Order in the text; what is inserted comes before what is removed, inner blocks first."""
        owner, role = self.block
        return self.line, -1, bool(self.old), -getattr(owner, role)[0].col_offset

    def apply(self) -> None:
        """Change the block in the syntax tree."""
        owner, role = self.block
        block = list(getattr(owner, role))
        block[self.first : self.first + len(self.old)] = self.new
        setattr(owner, role, block)


def rewrite(text: str, repaired: str) -> str:
    """Return *text* with minimal changes so that it has the syntax tree of *repaired*.

    Comments, blank lines and layout stay where nothing changed. Statements that are moved or
    indented keep their comments too. If *text* cannot be changed in place, *repaired* itself is
    returned.

    Args:
        text: Program as its author wrote it.
        repaired: Repaired program, in any layout.
    """
    line_end = "\r\n" if "\r\n" in text else "\n"
    repaired = repaired.replace("\n", line_end)
    written = _Rewriter(text.replace("\r\n", "\n")).rewrite(repaired)
    return repaired if written is None else written.replace("\n", line_end)


class _Rewriter:
    """Rewrites one text, whose lines end with a line feed."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        self._tree = ast.parse(self._data)
        self._lines = self._data.splitlines(keepends=True)
        self._offsets = [0]
        for line in self._lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._texts = {
            ast.dump(node): self._lines_of(node)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.stmt) and self._has_own_lines(node) and not self._is_elif(node)
        }

    def rewrite(self, repaired: str) -> str | None:
        """Return the text with the syntax tree of *repaired*; None if it cannot be changed."""
        changes = self._changes_below(self._tree, ast.parse(repaired))
        if changes is None:
            return None
        data: bytes | None = self._data
        for change in sorted(changes, key=lambda change: change.place, reverse=True):
            if data is not None:
                if isinstance(change, _Change):
                    data = self._replace(data, change)
                else:
                    data = self._replace_lines(data, change)
        return None if data is None else data.decode()

    def _replace(self, data: bytes, change: _Change) -> bytes | None:
        start = self._offsets[change.old.lineno - 1] + change.old.col_offset
        end = self._offsets[_end_line(change.old) - 1] + (change.old.end_col_offset or 0)
        write(change.slot, change.new)
        expected = ast.dump(self._tree)
        indent = self._lines[change.old.lineno - 1][: change.old.col_offset].decode()
        spans = [(start, end)]
        if (
            isinstance(change.new, _ATOMS)
            and data[start - 1 : start] + data[end : end + 1] == b"()"
        ):
            spans.insert(0, (start - 1, end + 1))  # the parentheses may be superfluous now
        for first, last in spans:
            bodies = self._spellings(change.new, indent if indent.isspace() else "")
            for body in (*_quoted_like(data[start:end], change.new), *bodies):
                changed = data[:first] + body.encode() + data[last:]
                if _dump(changed) == expected:
                    return changed
        return None

    def _replace_lines(self, data: bytes, change: _LineChange) -> bytes | None:
        owner, role = change.block
        indented = getattr(owner, role)[0]
        indent = self._lines[indented.lineno - 1][: indented.col_offset]
        start = self._offsets[change.line - 1]
        end = self._offsets[_end_line(change.old[-1])] if change.old else start
        change.apply()
        made = "".join(self._written(node) for node in change.new)
        body = textwrap.indent(made, indent.decode()).encode()
        if start and data[start - 1 : start] != b"\n":
            body = b"\n" + body
        changed = data[:start] + body + data[end:]
        return changed if _dump(changed) == ast.dump(self._tree) else None

    def _spellings(self, node: ast.expr | ast.stmt, indent: str) -> Iterator[str]:
        """Yield the source of *node*; of an expression also with parentheses around it."""
        if isinstance(node, ast.stmt):
            yield textwrap.indent(self._written(node), indent).strip()
        else:
            text = ast.unparse(node)
            if isinstance(node, ast.Yield | ast.YieldFrom):
                yield text[1:-1]  # they need no parentheses as a statement
            yield text
            yield f"({text})"

    def _written(self, node: ast.stmt) -> str:
        """Return the lines of *node* without indentation: the author's own if he wrote it."""
        text = self._texts.get(ast.dump(node))
        is_block = isinstance(node, ast.If | ForNode | ast.While | WithNode)
        if text is None and is_block and not getattr(node, "orelse", None):
            head = ast.unparse(node).split("\n", 1)[0]
            body = "".join(self._written(statement) for statement in getattr(node, "body", ()))
            text = f"{head}\n{textwrap.indent(body, '    ')}"
        return ast.unparse(node) + "\n" if text is None else text

    def _lines_of(self, node: ast.stmt) -> str:
        lines = self._lines[_first_line(node) - 1 : _end_line(node)]
        cut = textwrap.dedent(b"".join(lines).decode())
        return cut if cut.endswith("\n") else cut + "\n"

    def _has_own_lines(self, node: ast.stmt) -> bool:
        """Whether no other code is on the lines of *node*."""
        before = self._lines[node.lineno - 1][: node.col_offset]
        after = self._lines[_end_line(node) - 1][node.end_col_offset :].strip()
        return not before.strip() and (not after or after.startswith(b"#"))

    def _is_elif(self, node: ast.stmt) -> bool:
        return self._lines[node.lineno - 1][node.col_offset :].startswith(b"elif")

    def _changes(self, slot: Slot, old: object, new: object) -> list[_Change | _LineChange] | None:
        """Return the smallest changes from *old* to *new*; None if the parent must change.

        The parent must change if *old* is neither an expression nor a statement, since only these
        have a position in the text.
        """
        if not isinstance(old, ast.AST) or not isinstance(new, ast.AST):
            return [] if old == new and type(old) is type(new) else None
        if ast.dump(old) == ast.dump(new):
            return []
        below = None
        if type(old) is type(new):
            below = self._changes_below(old, new)
        if below is not None:
            return below
        if isinstance(slot[0], ast.JoinedStr | ast.FormattedValue) and slot[1] != "value":
            return None  # the text or the format of an f-string
        if isinstance(old, ast.expr | ast.stmt) and isinstance(new, ast.expr | ast.stmt):
            return [_Change(slot=slot, old=old, new=new)]
        return None

    def _changes_below(self, old: ast.AST, new: ast.AST) -> list[_Change | _LineChange] | None:
        """Return the changes inside *old*; None if *old* itself must change."""
        changes: list[_Change | _LineChange] = []
        for name in old._fields:
            before, after = getattr(old, name), getattr(new, name)
            if isinstance(before, list) and isinstance(after, list):
                part = self._changes_of_list(old, name, before, after)
            else:
                part = self._changes((old, name, None), before, after)
            if part is None:
                return None
            changes += part
        return changes

    def _changes_of_list(
        self, owner: ast.AST, role: str, old: list[ast.AST], new: list[ast.AST]
    ) -> list[_Change | _LineChange] | None:
        if role in _BLOCKS and old:
            return self._changes_of_block(owner, role, old, new)  # type: ignore[arg-type]
        if len(old) != len(new):
            return None
        changes: list[_Change | _LineChange] = []
        for index, pair in enumerate(zip(old, new, strict=True)):
            part = self._changes((owner, role, index), *pair)
            if part is None:
                return None
            changes += part
        return changes

    def _changes_of_block(
        self, owner: ast.AST, role: str, old: list[ast.stmt], new: list[ast.stmt]
    ) -> list[_Change | _LineChange] | None:
        """Align the statements of two blocks: pairs change in place, the others line by line."""
        if not new:
            return self._removal_of_else(owner, role, old)
        changes: list[_Change | _LineChange] = []
        for first, last, start, end in differences(old, new):
            before, after = old[first:last], new[start:end]
            if len(before) == len(after) and not self._are_rearranged(before, after):
                for place, pair in enumerate(zip(before, after, strict=True), first):
                    part = self._changes((owner, role, place), *pair)
                    if part is None:
                        return None
                    changes += part
                continue
            if self._is_elif(old[0]):
                return None
            if not all(map(self._has_own_lines, before or [old[max(first - 1, 0)]])):
                return None
            if not before and first:  # comments before the next statement stay with it
                line = _end_line(old[first - 1]) + 1
            else:
                line = _first_line(old[first])
            changes.append(
                _LineChange(block=(owner, role), first=first, old=before, new=after, line=line)
            )
        return changes

    def _removal_of_else(
        self, owner: ast.AST, role: str, old: list[ast.stmt]
    ) -> list[_Change | _LineChange] | None:
        """Remove the lines from the end of the body to the end of its ``else`` or ``elif``."""
        if role != "orelse" or not isinstance(owner, ast.If | ForNode | ast.While):
            return None
        if not self._has_own_lines(owner.body[-1]) or not self._has_own_lines(old[-1]):
            return None
        line = _end_line(owner.body[-1]) + 1
        return [_LineChange(block=(owner, role), first=0, old=old, new=[], line=line)]

    def _are_rearranged(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> bool:
        """Whether statements of another type come from elsewhere, or are an ``if`` around *old*."""
        dumps = {ast.dump(node) for node in old}
        for before, after in zip(old, new, strict=True):
            if type(before) is not type(after):
                parts = after.body if isinstance(after, ast.If) else [after]
                if ast.dump(after) in self._texts or any(ast.dump(part) in dumps for part in parts):
                    return True
        return False


def _quoted_like(old: bytes, new: ast.AST) -> Iterator[str]:
    """Yield a text in double quotes where the author has written the old one so."""
    if old.startswith(b'"') and isinstance(new, ast.Constant) and isinstance(new.value, str):
        written = ast.unparse(new)
        if '"' not in written:
            yield f'"{written[1:-1]}"'


def differences(
    old: Sequence[ast.stmt], new: Sequence[ast.stmt]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield ranges of *old* and *new* that differ, aligned by contents and then by type."""
    dumps = [ast.dump(node) for node in old], [ast.dump(node) for node in new]
    for _, first, last, start, end in _opcodes(*dumps):
        types = [type(node) for node in old[first:last]], [type(node) for node in new[start:end]]
        for tag, i, j, k, m in SequenceMatcher(None, *types, autojunk=False).get_opcodes():
            if tag == "equal":
                pairs = zip(range(i, j), range(k, m), strict=True)
                yield from ((first + a, first + a + 1, start + b, start + b + 1) for a, b in pairs)
            else:
                yield first + i, first + j, start + k, start + m


def _opcodes(old: list[str], new: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return (opcode for opcode in opcodes if opcode[0] != "equal")


def _first_line(node: ast.stmt) -> int:
    """Return the line of *node* or of its first decorator."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _end_line(node: ast.expr | ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _dump(program: bytes) -> str | None:
    """Return the syntax tree as text; None if *program* does not parse."""
    try:
        return ast.dump(ast.parse(program))
    except SyntaxError:
        return None
