"""Static call graph by names: decides which tests may call a function, without running anything."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


def may_call(start: ast.AST, goal: str, modules: Iterable[ast.Module]) -> bool:
    """Whether the code of *start* refers to *goal*, directly or through definitions.

    Definitions are identified by name alone, so the answer errs on the side of True.

    Args:
        start: A definition; its parameters count as references, as they may name fixtures.
        goal: Name to find.
        modules: Syntax trees that contain the definitions.
    """
    references: dict[str, set[str]] = {}
    for module in modules:
        for statement in module.body:
            for name, referenced in _definitions(statement):
                references.setdefault(name, set()).update(referenced)
    pending = list(_referenced(start))
    seen = set(pending)
    while pending:
        new = references.get(pending.pop(), set()) - seen
        seen |= new
        pending += new
    return goal in seen


def _referenced(code: ast.AST) -> set[str]:
    """Names that *code* reads, and those of its parameters."""
    found = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def _definitions(statement: ast.stmt) -> Iterator[tuple[str, set[str]]]:
    """Yield the names that *statement* defines, each with the names that it refers to."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name, {alias.name}
        return
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    defined = {node.id for node in stored if isinstance(node.ctx, ast.Store)}
    referenced = _referenced(statement)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        defined = {statement.name}
    for name in defined:
        yield name, referenced
