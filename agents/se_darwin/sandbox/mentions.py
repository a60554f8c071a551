"""Which tests have to do with a function: by names alone, nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


def reaches(start: str, goal: str, modules: Iterable[ast.Module]) -> bool:
    """Whether what *start* names mentions *goal*, itself or by way of others in *modules*.

    Names stand for whatever bears them, so this errs on the side of True.
    """
    mentions: dict[str, set[str]] = {}
    for module in modules:
        for statement in module.body:
            for name, mentioned in _definitions(statement):
                mentions.setdefault(name, set()).update(mentioned)
    seen, pending = {start}, [start]
    while pending:
        new = mentions.get(pending.pop(), set()) - seen
        seen |= new
        pending += new
    return goal in seen


def _definitions(statement: ast.stmt) -> Iterator[tuple[str, set[str]]]:
    """The names that *statement* defines, each with the names that it mentions."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name, {alias.name}
        return
    mentioned: set[str] = set()
    defined: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            (defined if isinstance(node.ctx, ast.Store) else mentioned).add(node.id)
        elif isinstance(node, ast.Attribute):
            mentioned.add(node.attr)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        defined = {statement.name}
    for name in defined:
        yield name, mentioned
