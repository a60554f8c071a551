"""A function cut out of its module, with all that it needs there."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from functools import lru_cache

from agents.se_darwin.edits.edit_space import definition_of


@lru_cache(maxsize=16)
def parsed(source: str) -> ast.Module:
    """Syntax tree of *source*; shared, so not to be changed."""
    return ast.parse(source)


class NotCutError(ValueError):
    """The function needs more than its module and the standard library."""


def cut(source: str, names: Collection[str]) -> str:
    """Return the statements of the module *source* that define *names*, and what those need.

    The text of each statement is kept.

    Raises:
        NotCutError: They need a module outside the standard library.
    """
    tree = parsed(source)
    chosen = needed_statements(tree, names)
    lines = source.splitlines()
    parts: list[str] = []
    for index in sorted(chosen):
        node = tree.body[index]
        _check_imports(node)
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        text = "\n".join(lines[first - 1 : node.end_lineno])
        is_block = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        parts.append(f"\n\n{text}\n\n" if is_block else text)
    joined = "\n".join(parts)
    while "\n\n\n\n" in joined:
        joined = joined.replace("\n\n\n\n", "\n\n\n")
    return joined.strip("\n") + "\n"


def is_cuttable(source: str, name: str) -> bool:
    """Whether what *name* needs is in the module *source* and the standard library."""
    tree = parsed(source)
    try:
        for index in needed_statements(tree, [name]):
            _check_imports(tree.body[index])
    except NotCutError:
        return False
    return True


def needed_statements(tree: ast.Module, names: Collection[str]) -> set[int]:
    """Positions of the statements in *tree* that define *names*, and what those need."""
    binding: dict[str, list[int]] = {}
    for index, node in enumerate(tree.body):
        for name in _bound(node):
            binding.setdefault(name, []).append(index)
    chosen = {
        index
        for index, node in enumerate(tree.body)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    }
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for index in binding.get(name, []):
            if index not in chosen:
                chosen.add(index)
                waiting += read_names(tree.body[index])
    return chosen


def bound_names(tree: ast.Module) -> set[str]:
    """Names that the module defines or imports."""
    return {name for node in tree.body for name in _bound(node)}


def read_names(node: ast.AST) -> set[str]:
    """Names that *node* reads."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def with_function_of(source: str, other: str, function: str) -> str:
    """Return *source* with the text of *function* as *other* has it.

    Raises:
        ValueError: One of them does not define it.
    """
    new, old = (definition_of(parsed(text), function) for text in (source, other))
    lines, others = source.splitlines(), other.splitlines()
    new_first, old_first = _first_line(new), _first_line(old)
    if new.col_offset != old.col_offset:
        raise ValueError(f"{function} is indented differently")
    lines[new_first - 1 : new.end_lineno] = others[old_first - 1 : old.end_lineno]
    return "\n".join(lines) + "\n"


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
        if _is_main_guard(node):
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ExceptHandler):
                for each in child.body:
                    yield from _bound(each)
            elif isinstance(child, ast.stmt):
                yield from _bound(child)
    else:
        yield from (
            each.id
            for each in ast.walk(node)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        )
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def _check_imports(node: ast.stmt) -> None:
    optional = isinstance(node, ast.Try) and bool(node.handlers)
    typing = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    if optional or typing:
        return
    for each in ast.walk(node):
        modules: list[str] = []
        if isinstance(each, ast.Import):
            modules = [alias.name for alias in each.names]
        elif isinstance(each, ast.ImportFrom):
            modules = ["." * each.level + (each.module or "")]
        for module in modules:
            if module.partition(".")[0] not in sys.stdlib_module_names:
                raise NotCutError(f"it imports {module}")
