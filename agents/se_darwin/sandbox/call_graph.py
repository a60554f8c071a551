"""Static call graph by names: decides which tests may call a function, without running anything."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set


def names_that_reach(goal: str, modules: Iterable[ast.Module]) -> set[str]:
    """Names of definitions whose code refers to *goal*, directly or through others; and *goal*.

    Definitions are identified by name alone, so there may be too many, but never too few.

    Args:
        goal: Name to find.
        modules: Syntax trees that contain the definitions.
    """
    users: dict[str, set[str]] = {}
    for module in modules:
        for statement in module.body:
            for name, referenced in _definitions(statement):
                for used in referenced:
                    users.setdefault(used, set()).add(name)
    reaching, pending = {goal}, [goal]
    while pending:
        new = users.get(pending.pop(), set()) - reaching
        reaching |= new
        pending += new
    return reaching


def refers_to(code: ast.AST, names: Set[str]) -> bool:
    """Whether *code* refers to one of *names*; parameters count, as they may name fixtures."""
    return not names.isdisjoint(_referenced(code))


def _referenced(code: ast.AST) -> set[str]:
    """Names that *code* reads, and those of its parameters."""
    names = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


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
