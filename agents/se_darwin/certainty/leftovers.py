"""What a repair leaves in the program although it no longer does anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.edits.nodes import FunctionNode

_EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_BLOCKS = ("body", "orelse", "finalbody")


def count_leftovers(source: str) -> int:
    """Return how many statements and variables of a program do nothing.

    Counted are statements behind one that leaves their block, conditions that are constants or
    compare an expression with itself, assignments of a variable to itself, and names that the
    program sets or takes as parameters and never reads.
    """
    tree = ast.parse(source)
    return sum(_idle(node) for node in ast.walk(tree)) + len(_never_read(tree))


def _idle(node: ast.AST) -> int:
    count = sum(
        isinstance(statement, _EXITS) for block in _blocks_of(node) for statement in block[:-1]
    )
    if isinstance(node, ast.If | ast.While):
        count += isinstance(node.test, ast.Constant)
    elif isinstance(node, ast.Compare):
        count += any(
            ast.unparse(comparator) == ast.unparse(node.left) for comparator in node.comparators
        )
    elif isinstance(node, ast.Assign):
        count += any(ast.unparse(target) == ast.unparse(node.value) for target in node.targets)
    return count


def _blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for role in _BLOCKS:
        block = getattr(node, role, None)
        if isinstance(block, list):
            yield block


def _never_read(tree: ast.Module) -> set[str]:
    """Names that are local to a function, or parameters, and never read in it."""
    unread = set()
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            names = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
            read = {name.id for name in names if not isinstance(name.ctx, ast.Store)}
            parts = ast.walk(node.args)
            local_names = {name.id for name in names if isinstance(name.ctx, ast.Store)}
            local_names |= {part.arg for part in parts if isinstance(part, ast.arg)}
            unread |= {f"{node.name} {name}" for name in local_names - read - {"_", "self", "cls"}}
    return unread
