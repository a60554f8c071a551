"""Places of a function at which the variables are copied, and the probes of its edits."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.edits.edit import BLOCKS, Assignment, Block, read, write
from agents.se_darwin.edits.edit_space import definition_of, flattened
from agents.se_darwin.fork_server.probing import Probe, Snippet, SnippetKind
from agents.se_darwin.fork_server.visits import VISIT_NAME

_HEADS = {ast.If: "test", ast.While: "test", ast.For: "iter"}
_LOOPS = (ast.For, ast.While, ast.With)
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)


@dataclass(frozen=True, slots=True)
class _Position:
    """A statement in a block."""

    owner: ast.AST
    role: str
    index: int
    statement: ast.stmt

    @property
    def block(self) -> list[ast.stmt]:
        found: list[ast.stmt] = getattr(self.owner, self.role)
        return found


@dataclass(frozen=True, slots=True)
class _Region:
    """Statements of a block that an edit changes: those from *first* on, up to *last*."""

    owner: ast.AST
    role: str
    first: int
    last: int
    head: str  # the field of the only statement that is changed, if it is a condition or the like


class Places:
    """Numbers the places of a function: before each statement, in the heads of loops, after blocks.

    Args:
        space: The program and its edits.
    """

    def __init__(self, space: EditSpace) -> None:
        self._space = space
        self._numbers = {id(node): 3 * number for number, node in enumerate(space.nodes)}
        self._parents = {
            id(child): (node, role, index)
            for node in space.nodes
            for role, index, child in _children(node)
        }

    def instrumented(self) -> str:
        """Return the program with a call of the builtin `VISIT_NAME` at each place."""
        tree = ast.parse(self._space.source)
        nodes = tuple(ast.walk(definition_of(tree, self._space.function)))
        numbers = {id(node): 3 * number for number, node in enumerate(nodes)}
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                continue
            for role in BLOCKS:
                block = getattr(node, role, None)
                if isinstance(block, list):
                    setattr(node, role, list(_with_visits(block, numbers)))
        return ast.unparse(ast.fix_missing_locations(tree))

    def probe(self, edit: Edit) -> Probe | None:
        """Return what *edit* changes at its place; None if that cannot be evaluated by itself."""
        assignments = edit.assign()
        region = self._region(assignments)
        if region is None:
            return None
        block: list[ast.stmt] = list(getattr(region.owner, region.role))
        before = block[region.first : region.last + 1]
        old_texts = [] if region.head else _texts(before)
        head = getattr(before[0], region.head) if region.head else None
        old_head = ast.unparse(head) if head is not None else ""
        undone: list[Assignment] = []
        try:
            undone += [(slot, read(slot)) for slot, _ in assignments]
            for slot, value in assignments:
                write(slot, value)
            if any(isinstance(value, Block) for _, value in assignments):
                for slot, flat in flattened(self._space.definition):
                    undone.append((slot, read(slot)))
                    write(slot, flat)
            if region.head:
                return self._head_probe(before[0], region.head, old_head, head)
            now: list[ast.stmt] = getattr(region.owner, region.role)
            count = len(now) - (len(block) - region.last - 1)
            return self._block_probe(block, region.first, old_texts, now[region.first : count])
        finally:
            for slot, value in reversed(undone):
                write(slot, value)

    def _head_probe(
        self, statement: ast.stmt, head: str, old_text: str, old: ast.AST | None
    ) -> Probe | None:
        new = getattr(statement, head)
        place = self._numbers[id(statement)] + isinstance(statement, ast.While)
        kind: SnippetKind = "items" if head == "iter" else "test"
        return self._probe(
            place,
            statement,
            {"kind": kind, "text": old_text, "stores": _stores([old] if old else [])},
            {"kind": kind, "text": ast.unparse(new), "stores": _stores([new])},
        )

    def _block_probe(
        self,
        block: Sequence[ast.stmt],
        first: int,
        old_texts: Sequence[str],
        now: Sequence[ast.stmt],
    ) -> Probe | None:
        """Compare the statements that differ; one that gets a condition runs or not."""
        texts = _texts(now)
        start, both = 0, min(len(texts), len(old_texts))
        while start < both and texts[start] == old_texts[start]:
            start += 1
        end = 0
        while end < both - start and texts[-1 - end] == old_texts[-1 - end]:
            end += 1
        old_texts, count = old_texts[start : len(old_texts) - end], len(texts) - end
        new, texts = now[start:count], texts[start:count]
        position = first + start
        if position < len(block):
            statement, place = block[position], self._numbers[id(block[position])]
        else:
            statement, place = block[-1], self._numbers[id(block[-1])] + 2
        only = new[0] if len(new) == 1 else None
        body = only.body if isinstance(only, ast.If) and not only.orelse else []
        if isinstance(only, ast.If) and body and _texts(body) == list(old_texts):
            return self._probe(
                place,
                statement,
                {"kind": "test", "text": "True", "stores": []},
                {"kind": "test", "text": ast.unparse(only.test), "stores": _stores([only.test])},
            )
        old = block[position : position + len(old_texts)]
        if any(isinstance(node, _LOOPS) for each in (*old, *new) for node in ast.walk(each)):
            return None  # to run a loop would be to run the candidate
        return self._probe(place, statement, _statements(old_texts), _statements(texts))

    def _probe(self, place: int, statement: ast.AST, old: Snippet, new: Snippet) -> Probe | None:
        texts = old["text"] + new["text"]
        if old == new or "super()" in texts or "nonlocal " in texts:
            return None
        return {"place": place, "nested": self._is_nested(statement), "old": old, "new": new}

    def _region(self, assignments: Iterable[Assignment]) -> _Region | None:
        """Return the statements of one block that contain all that is changed."""
        paths: list[list[_Position]] = []
        heads: set[str] = set()
        for (owner, role, index), _ in assignments:
            held = read((owner, role, index))
            is_statement = role in BLOCKS and index is not None and isinstance(held, ast.stmt)
            path = self._path(held if is_statement and isinstance(held, ast.AST) else owner)
            if not path:
                return None
            heads.add("" if is_statement else self._head(owner, role, path[0].statement))
            paths.append(path)
        for each in paths[0] if paths else ():
            same = [
                next((p for p in path if p.owner is each.owner and p.role == each.role), None)
                for path in paths
            ]
            found = [position for position in same if position is not None]
            if len(found) < len(paths):
                continue
            first, last = min(p.index for p in found), max(p.index for p in found)
            statement = each.block[first]
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                return None
            is_inner = first == last and all(path[0].statement is statement for path in paths)
            [head] = heads if is_inner and len(heads) == 1 else [""]
            head = head if _HEADS.get(type(statement)) == head else ""
            return _Region(each.owner, each.role, first, last, head)
        return None

    def _path(self, node: ast.AST) -> list[_Position]:
        """Return the statements around *node*, and itself, innermost first."""
        found = []
        while id(node) in self._parents:
            owner, role, index = self._parents[id(node)]
            if isinstance(node, ast.stmt) and role in BLOCKS and index is not None:
                found.append(_Position(owner, role, index, node))
            node = owner
        return found

    def _head(self, owner: ast.AST, role: str, statement: ast.stmt) -> str:
        """Return the field of *statement* that contains *role* of *owner*."""
        while owner is not statement:
            owner, role, _ = self._parents[id(owner)]
        return role

    def _is_nested(self, node: ast.AST) -> bool:
        while id(node) in self._parents:
            node, _, _ = self._parents[id(node)]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return node is not self._space.definition
        return False


class _Yields(ast.NodeTransformer):
    """Replaces each ``yield`` by a call that notes the value."""

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        self.generic_visit(node)
        values = [node.value] if node.value else []
        return ast.Call(ast.Name("__yield__", ast.Load()), values, [])

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self.generic_visit(node)
        return ast.Call(ast.Name("__yield__", ast.Load()), [node.value], [])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # its own yields are not those of the function


def _texts(nodes: Iterable[ast.AST]) -> list[str]:
    return [ast.unparse(each) for each in nodes]


def _statements(texts: Sequence[str]) -> Snippet:
    text = "\n".join(texts) or "pass"
    tree = ast.parse(text)
    stores = _stores([tree])
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(tree)):
        text = ast.unparse(ast.fix_missing_locations(_Yields().visit(tree)))
    return {"kind": "statements", "text": text, "stores": stores}


def _stores(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the names that *nodes* set."""
    names: set[str] = set()
    for node in (each for root in nodes for each in ast.walk(root)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.ClassDef) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return sorted(names)


def _children(node: ast.AST) -> Iterable[tuple[str, int | None, ast.AST]]:
    for role, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield role, None, value
        elif isinstance(value, list):
            yield from (
                (role, i, each) for i, each in enumerate(value) if isinstance(each, ast.AST)
            )


def _with_visits(block: Sequence[ast.stmt], numbers: dict[int, int]) -> Iterable[ast.stmt]:
    for index, statement in enumerate(block):
        number = numbers[id(statement)]
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not (is_text or isinstance(statement, ast.Global | ast.Nonlocal)):
            yield ast.Expr(_visit(number))
        if isinstance(statement, ast.While):
            statement.test = ast.BoolOp(ast.Or(), [_visit(number + 1), statement.test])
        yield statement
        if index == len(block) - 1 and not isinstance(statement, _LEAVES):
            yield ast.Expr(_visit(number + 2))


def _visit(place: int) -> ast.Call:
    return ast.Call(ast.Name(VISIT_NAME, ast.Load()), [ast.Constant(place)], [])
