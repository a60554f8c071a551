"""Places of a function at which the variables are copied, and the traces of its variants."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import dedent

from agents.se_darwin.edits.edit import BLOCKS
from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.fork_server.tracing import Snippet, SnippetKind, Trace
from agents.se_darwin.fork_server.visits import VISIT_NAME

_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)


@dataclass(frozen=True, slots=True)
class _Block:
    """Statements of one block; their lines, from 0, start at *starts* and stop before *stops*."""

    statements: list[ast.stmt]
    starts: list[int]
    stops: list[int]
    is_elif: bool


class Places:
    """Numbers the places of a function: before each statement, in the heads of loops, after blocks.

    The number of a place is three times that of its statement in breadth-first order; plus one in
    the head of a loop, plus two after the last statement of a block.

    Args:
        source: Source of a program in normal form.
        function: Name of the function, or ``Class.method``.
    """

    def __init__(self, source: str, function: str) -> None:
        self._source, self._function = source, function
        self._lines = source.split("\n")
        definition = definition_of(ast.parse(source), function)
        nodes = tuple(ast.walk(definition))
        self._numbers = {id(node): 3 * number for number, node in enumerate(nodes)}
        self._nested = {
            id(inner)
            for node in nodes
            if isinstance(node, FunctionNode) and node is not definition
            for inner in ast.walk(node)
        }
        self._blocks = [_block(node, role, self._lines) for node, role in _blocks_of(nodes)]
        self._blocks.sort(key=lambda block: block.stops[-1] - block.starts[0])

    def instrumented(self) -> str:
        """Return the program with a call of the builtin `VISIT_NAME` at each place."""
        tree = ast.parse(self._source)
        nodes = tuple(ast.walk(definition_of(tree, self._function)))
        numbers = {id(node): 3 * number for number, node in enumerate(nodes)}
        for node, role in _blocks_of(nodes):
            setattr(node, role, list(_with_visits(getattr(node, role), numbers)))
        return ast.unparse(ast.fix_missing_locations(tree))

    def trace(self, variant: str) -> Trace | None:
        """Return the smallest part that *variant* changes, a program with one more edit.

        None if that cannot be evaluated by itself.
        """
        old, new = self._lines, variant.split("\n")
        both = min(len(old), len(new))
        start = next((i for i in range(both) if old[i] != new[i]), both)
        both -= start
        end = next((i for i in range(both) if old[-1 - i] != new[-1 - i]), both)
        stop, longer = len(old) - end, len(new) - len(old)
        for block in self._blocks:
            if not block.starts[0] <= start <= stop <= block.stops[-1]:
                continue
            last = sum(line < stop for line in block.starts)
            after = sum(line <= start for line in block.stops)
            for first in range(after, max(-1, after - 2), -1):  # what is new may join an `if`
                low, high = start, stop
                if first < last:
                    low, high = min(start, block.starts[first]), max(stop, block.stops[last - 1])
                now = _parsed(new[low : high + longer], block)
                if now is not None:
                    is_head = (low, low + 1, longer) == (start, stop, 0)
                    return self._compare(block, first, last, now, is_head=is_head)
        return None

    def _compare(
        self, block: _Block, first: int, last: int, now: list[ast.stmt], *, is_head: bool
    ) -> Trace | None:
        """Compare the statements from *first* up to *last* of *block* with those that are *now*.

        With *is_head* only their first line differs.
        """
        old = block.statements[first:last]
        texts, new_texts = _texts(old), _texts(now)
        while texts and new_texts and texts[-1] == new_texts[-1]:
            old, now = old[:-1], now[:-1]
            texts.pop()
            new_texts.pop()
        if first < len(block.statements):
            statement, place = block.statements[first], 0
        else:
            statement, place = block.statements[-1], 2
        place += self._numbers[id(statement)]
        is_nested = id(statement) in self._nested
        heads = _heads(old[0], now[0]) if is_head and len(old) == len(now) == 1 else None
        if heads is not None:
            place += isinstance(statement, ast.While)
            return _trace(place, is_nested, *heads)
        only = now[0] if len(now) == 1 else None
        if isinstance(only, ast.If) and not only.orelse and old and _texts(only.body) == texts:
            always: Snippet = {"kind": "test", "text": "True", "stores": []}
            return _trace(place, is_nested, always, _expression("test", only.test))
        if any(isinstance(node, _LOOPS) for root in (*old, *now) for node in ast.walk(root)):
            return None  # to run a loop would be to run the candidate
        return _trace(place, is_nested, _statements(texts), _statements(new_texts))


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
    return [ast.unparse(node) for node in nodes]


def _blocks_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Yield the owner and the role of each block of statements that belongs to the function."""
    for node in nodes:
        for role in () if isinstance(node, ast.ClassDef) else BLOCKS:
            block = getattr(node, role, None)
            if isinstance(block, list) and block:
                yield node, role


def _block(owner: ast.AST, role: str, lines: Sequence[str]) -> _Block:
    statements: list[ast.stmt] = getattr(owner, role)
    first_lines = (
        [
            statement.lineno,
            *(decorator.lineno for decorator in getattr(statement, "decorator_list", [])),
        ]
        for statement in statements
    )
    starts = [min(numbers) - 1 for numbers in first_lines]
    return _Block(
        statements=statements,
        starts=starts,
        stops=[statement.end_lineno or statement.lineno for statement in statements],
        is_elif=lines[starts[0]].lstrip().startswith("elif "),
    )


def _parsed(lines: Sequence[str], block: _Block) -> list[ast.stmt] | None:
    """Return the statements in *lines*; None if they are not whole statements of *block*."""
    text = "\n".join(lines)
    if not text.strip():
        return []
    indent = block.statements[0].col_offset
    is_elif = text.lstrip().startswith("elif ")
    if len(text) - len(text.lstrip()) != indent or is_elif != block.is_elif:
        return None
    if '"""' in text or "'''" in text:  # its lines may have any indentation
        return None
    try:
        statements = ast.parse(dedent(text)[2 * is_elif :]).body
    except SyntaxError:
        return None
    return None if is_elif and len(statements) > 1 else statements  # after the `elif`, not in it


def _heads(old: ast.stmt, now: ast.stmt) -> tuple[Snippet, Snippet] | None:
    """Return the conditions, or what loops run over, of statements whose bodies are equal."""
    if isinstance(old, ast.If | ast.While) and type(old) is type(now):
        return _expression("test", old.test), _expression("test", now.test)
    if not (isinstance(old, ast.For) and isinstance(now, ast.For)):
        return None
    if ast.dump(old.target) != ast.dump(now.target):
        return None
    return _expression("items", old.iter), _expression("items", now.iter)


def _expression(kind: SnippetKind, node: ast.AST) -> Snippet:
    return {"kind": kind, "text": ast.unparse(node), "stores": _stores([node])}


def _trace(place: int, is_nested: bool, old: Snippet, new: Snippet) -> Trace | None:
    texts = old["text"] + new["text"]
    if old == new or "super()" in texts or "nonlocal " in texts:
        return None
    return {"place": place, "nested": is_nested, "old": old, "new": new}


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
    for node in (part for root in nodes for part in ast.walk(root)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.ClassDef) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return sorted(names)


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
