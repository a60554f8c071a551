"""Selection of tests by ``-k EXPRESSION``, as pytest does it without running the test module."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

_TOKEN = re.compile(r"\s+|[()]|(?:\w|[:+\-.\[\]\\/])+")  # as in pytest's own expressions
_OPERATORS = ("and", "or", "not", "(", ")")
_EXPRESSION = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Name, ast.Load),
)


class KeywordError(ValueError):
    """The text is not an expression of ``-k``.

    Args:
        keyword: The text.
    """

    def __init__(self, keyword: str) -> None:
        super().__init__(
            f"{keyword!r} does not select tests: write parts of names with and, or, not and ()"
        )


def selector(keyword: str) -> Callable[[Collection[str]], bool]:
    """Return whether the names of a test match *keyword*; all do if it is empty.

    Each operand is a part of one of the names; upper and lower case are equal.

    Raises:
        KeywordError: It is not made of such parts, ``and``, ``or``, ``not`` and ``()``.
    """
    if not keyword.strip():
        return lambda _: True
    parts: list[str] = []
    words = [_operand(word, parts) for word in _words(keyword)]
    try:
        tree = ast.parse(" ".join(words), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise KeywordError(keyword) from None
    if not all(isinstance(node, _EXPRESSION) for node in ast.walk(tree)):
        raise KeywordError(keyword)

    def matches(node: ast.expr, names: Collection[str]) -> bool:
        if isinstance(node, ast.BoolOp):
            join = all if isinstance(node.op, ast.And) else any
            return join(matches(operand, names) for operand in node.values)
        if isinstance(node, ast.UnaryOp):
            return not matches(node.operand, names)
        part = parts[int(node.id[1:])] if isinstance(node, ast.Name) else ""
        return any(part in name.lower() for name in names)

    return lambda names: matches(tree.body, names)


def mark_names(
    decorators: Iterable[ast.expr], variables: Mapping[str, ast.expr] | None = None
) -> Iterator[str]:
    """Yield the names of pytest's marks among *decorators*, or among the values of ``pytestmark``.

    Args:
        decorators: Expressions such as ``pytest.mark.slow``, or lists of them.
        variables: Values of the module's variables, which a decorator may name.
    """
    for decorator in decorators:
        mark = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(mark, ast.List | ast.Tuple):
            yield from mark_names(mark.elts, variables)
        elif isinstance(mark, ast.Name) and mark.id in (variables or {}):
            yield from mark_names([(variables or {})[mark.id]])
        elif isinstance(mark, ast.Attribute) and ast.unparse(mark.value).split(".")[-1] == "mark":
            yield mark.attr


def assigned(body: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    """Values of the variables that the statements of *body* assign."""
    return {
        target.id: node.value
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _words(keyword: str) -> Iterator[str]:
    place = 0
    while place < len(keyword):
        match = _TOKEN.match(keyword, place)
        if match is None:
            raise KeywordError(keyword)
        place = match.end()
        if not match.group().isspace():
            yield match.group()


def _operand(word: str, parts: list[str]) -> str:
    """*word* if it is an operator; else a name for it, and add it to *parts*."""
    if word in _OPERATORS:
        return word
    parts.append(word.lower())
    return f"n{len(parts) - 1}"
