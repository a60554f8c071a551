"""The difference between the function under repair and another version of it, as edits."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from agents.se_darwin.edits.edit import BLOCKS, Assignment, Block, Edit, Slot, statement_in
from agents.se_darwin.edits.edit_space import EditSpace
from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.edits.rewrite import differences

MOST_EDITS = 12
"""A version that differs in more places is one edit, of the whole function."""
_ANCESTORS = 4  # in the path of an edit, as in `EditSpace`
_COMPARED = 80  # edits of the space at one node that may equal a difference
_WIDTH = 120
_EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_EXPRESSION_KINDS: tuple[tuple[type[ast.expr], str], ...] = (
    (ast.Name, "variable"),
    (ast.Attribute, "attribute"),
    (ast.Compare, "comparison"),
    (ast.BinOp, "arithmetic"),
    (ast.BoolOp, "boolean"),
    (ast.Subscript, "slice"),
)


def difference(space: EditSpace, definition: FunctionNode) -> frozenset[Edit]:
    """Return edits of *space* that make its function equal to *definition*.

    Where the space has the same edit, it is that one; else an edit of the most similar kind. So an
    edit can be left out, joined with others, and described to the ranker like any other.

    Args:
        space: The program under repair.
        definition: Another version of its function.

    Returns:
        The edits; none if both are equal. One of the whole function, at node 0, if there are more
        than `MOST_EDITS`, or if they do not make *definition* exactly.
    """
    wanted = _replaced(space, definition)
    if wanted == space.source:
        return frozenset()
    edits = _Differ(space).below(space.definition, definition)
    if edits is not None and 0 < len(edits) <= MOST_EDITS:
        try:
            if space.program(edits) == wanted:
                return frozenset(_known(space, edit) for edit in edits)
        except (ValueError, TypeError):  # two of them are at one node
            pass
    return frozenset({_whole(space, definition)})


def size_of(space: EditSpace, edits: frozenset[Edit]) -> int:
    """Return the number of places that *edits* change: that of a whole function is its lines.

    Args:
        space: The program under repair.
        edits: Edits of it, also of other authors.
    """
    whole = next((edit for edit in edits if edit.node == 0), None)
    if whole is None:
        return len(edits)
    before, after = space.source.split("\n"), space.program(edits).split("\n")
    return max(1, len(set(after) - set(before)))


def _replaced(space: EditSpace, definition: FunctionNode) -> str:
    """Return the program with *definition*, in normal form."""
    return space.program([_whole(space, definition)])


def _whole(space: EditSpace, definition: FunctionNode) -> Edit:
    assignments: list[Assignment] = [
        ((space.definition, "args", None), definition.args),
        ((space.definition, "body", None), definition.body),
    ]
    return Edit(
        node=0,
        kind="several",
        old="function",
        new=f"function {_digest(ast.dump(definition))}",
        line=space.definition.lineno,
        assign=lambda: assignments,
        path=("body",),
    )


def _known(space: EditSpace, edit: Edit) -> Edit:
    """Return the edit of *space* that does the same as *edit*; else *edit*."""
    text = space.program([edit])
    at_node = [other for other in space.edits if other.node == edit.node]
    for other in at_node[:_COMPARED]:
        if space.program([other]) == text:
            return other
    return edit


class _Differ:
    """Finds the smallest expressions and statements that differ."""

    def __init__(self, space: EditSpace) -> None:
        self._numbers = {id(node): number for number, node in enumerate(space.nodes)}
        self._parents: dict[int, tuple[ast.AST, str]] = {}
        for node in space.nodes:
            for role, value in ast.iter_fields(node):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self._parents[id(child)] = node, role

    def below(self, old: ast.AST, new: ast.AST) -> list[Edit] | None:
        """Return the edits inside *old*; None if *old* itself must change."""
        edits: list[Edit] = []
        for role in old._fields:
            before, after = getattr(old, role), getattr(new, role)
            if isinstance(before, list) and isinstance(after, list):
                part = self._of_list(old, role, before, after)
            else:
                part = self._of_slot((old, role, None), before, after)
            if part is None:
                return None
            edits += part
        return edits

    def _of_list(
        self, owner: ast.AST, role: str, before: list[ast.AST], after: list[ast.AST]
    ) -> list[Edit] | None:
        if role in BLOCKS and isinstance(owner, ast.stmt | ast.ExceptHandler):
            return self._of_block(owner, role, before, after)  # type: ignore[arg-type]
        if len(before) != len(after):
            return None
        edits: list[Edit] = []
        for index, pair in enumerate(zip(before, after, strict=True)):
            part = self._of_slot((owner, role, index), *pair)
            if part is None:
                return None
            edits += part
        return edits

    def _of_slot(self, slot: Slot, old: object, new: object) -> list[Edit] | None:
        if not isinstance(old, ast.AST) or not isinstance(new, ast.AST):
            return [] if old == new and type(old) is type(new) else None
        if ast.dump(old) == ast.dump(new):
            return []
        below = self.below(old, new) if type(old) is type(new) else None
        if below is not None:
            return below
        if isinstance(slot[0], ast.JoinedStr | ast.FormattedValue) and slot[1] != "value":
            return None  # the text or the format of an f-string
        if isinstance(old, ast.expr | ast.stmt) and isinstance(new, ast.expr | ast.stmt):
            return [self._edit(old, _kind(old, new, slot), _text([new]), lambda: [(slot, new)])]
        return None

    def _of_block(
        self, owner: ast.AST, role: str, before: list[ast.stmt], after: list[ast.stmt]
    ) -> list[Edit] | None:
        if not before or not after:
            if before == after:
                return []
            kind = "else_added" if after else "statement_removed"
            whole: Slot = (owner, role, None)
            return [self._edit(owner, kind, _text(after), lambda: [(whole, list(after))])]
        edits: list[Edit] = []
        for first, last, start, stop in differences(before, after):
            old, new = before[first:last], after[start:stop]
            if len(old) == len(new):
                for index, pair in enumerate(zip(old, new, strict=True), first):
                    part = self._of_slot((owner, role, index), *pair)
                    if part is None:
                        return None
                    edits += part
            elif old:
                kind = "statement_removed" if not new else _statement_kind(new)
                assign = _replacement(owner, role, range(first, last), new)
                edits.append(self._edit(old[0], kind, _text(new) or "pass", assign))
            else:
                edits.append(self._insertion(owner, role, before, first, new))
        return edits

    def _insertion(
        self, owner: ast.AST, role: str, block: list[ast.stmt], place: int, new: list[ast.stmt]
    ) -> Edit:
        is_before = place < len(block)
        slot: Slot = (owner, role, place if is_before else place - 1)
        anchor = block[place if is_before else place - 1]

        def assign() -> Sequence[Assignment]:
            now = statement_in(slot)
            return [(slot, Block([*new, now] if is_before else [now, *new]))]

        edit = self._edit(anchor, _statement_kind(new), _text(new), assign, inserts=True)
        return edit if is_before else replace(edit, old="after")

    def _edit(
        self,
        node: ast.AST,
        kind: str,
        new: str,
        assign: Callable[[], Sequence[Assignment]],
        *,
        inserts: bool = False,
    ) -> Edit:
        old = "before" if inserts else _text([node])
        return Edit(
            node=self._numbers[id(node)],
            kind=kind,
            old=old,
            new=new,
            line=getattr(node, "lineno", 1),
            assign=assign,
            path=self._path(node),
            inserts=inserts,
        )

    def _path(self, node: ast.AST) -> tuple[str, ...]:
        path: list[str] = []
        while id(node) in self._parents and len(path) <= _ANCESTORS:
            node, role = self._parents[id(node)]
            path += [type(node).__name__] if path else [role, type(node).__name__]
        return tuple(path) or ("body",)


def _replacement(
    owner: ast.AST, role: str, places: range, new: list[ast.stmt]
) -> Callable[[], Sequence[Assignment]]:
    def assign() -> Sequence[Assignment]:
        first: Assignment = ((owner, role, places[0]), Block(list(new)))
        return [first, *(((owner, role, place), Block([])) for place in places[1:])]

    return assign


def _kind(old: ast.expr | ast.stmt, new: ast.expr | ast.stmt, slot: Slot) -> str:
    """Return the kind of edit that resembles the replacement of *old* by *new*."""
    if isinstance(new, ast.stmt):
        return _statement_kind([new])
    if isinstance(old, ast.Constant) and isinstance(new, ast.Constant):
        return "string" if isinstance(new.value, str) else "constant"
    if slot[1] in ("test", "ifs"):
        return "condition_replaced"
    if type(old) is type(new):
        for node_type, kind in _EXPRESSION_KINDS:
            if isinstance(new, node_type):
                return kind
    if isinstance(new, ast.Call) and ast.dump(old) in ast.dump(new):
        return "call_added"
    return "value_replaced"


def _statement_kind(new: Sequence[ast.stmt]) -> str:
    """Return the kind of edit that resembles the insertion of statements."""
    first = new[0]
    if isinstance(first, _EXITS):
        return "return_value" if isinstance(first, ast.Return) else "exit_added"
    if isinstance(first, ast.If):
        return "guard_added" if isinstance(first.body[-1], _EXITS) else "statement_guarded"
    if isinstance(first, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return "update_added"
    return "statement_copied"


def _text(nodes: Sequence[ast.AST]) -> str:
    """Return the text of *nodes* in one line; a long one is cut and numbered."""
    text = "; ".join(" ".join(ast.unparse(node).split()) for node in nodes)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}... {_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
