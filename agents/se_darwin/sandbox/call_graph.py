"""Static call graph by names: decides which tests may call a function, without running anything."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


def may_call(start: str, goal: str, modules: Iterable[ast.Module]) -> bool:
    """Whether the definition named *start* refers to *goal*, directly or through others.

    Definitions are identified by name alone, so the answer errs on the side of True.

    Args:
        start: Name of the first definition.
        goal: Name to find.
        modules: Syntax trees that contain the definitions.
    """
    references: dict[str, set[str]] = {}
    for module in modules:
        for statement in module.body:
            for name, referenced in _definitions(statement):
                references.setdefault(name, set()).update(referenced)
    seen, pending = {start}, [start]
    while pending:
        new = references.get(pending.pop(), set()) - seen
        seen |= new
        pending += new
    return goal in seen


def _definitions(statement: ast.stmt) -> Iterator[tuple[str, set[str]]]:
    """Yield the names that *statement* defines, each with the names that it refers to."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name, {alias.name}
        return
    referenced: set[str] = set()
    defined: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            (defined if isinstance(node.ctx, ast.Store) else referenced).add(node.id)
        elif isinstance(node, ast.Attribute):
            referenced.add(node.attr)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        defined = {statement.name}
    for name in defined:
        yield name, referenced
