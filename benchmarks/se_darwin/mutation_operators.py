"""Mutation operators that are not edits of the agent.

An edit of the agent inverts some of their mutants: a repeated statement is removed, and a removed
call, term or condition comes back if the function has the same one elsewhere. It never inverts a
number that is far off or a string that was cut short.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

MutationOperator = Callable[[ast.AST], ast.AST | list[ast.stmt] | None]
"""Returns the replacement of a node; None if the operator does not apply."""


def _delete_statement(node: ast.AST) -> ast.AST | None:
    """Delete an assignment or an expression statement."""
    return ast.Pass() if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr) else None


def _drop_guard(node: ast.AST) -> ast.AST | None:
    """Delete an ``if`` without ``else``."""
    return ast.Pass() if isinstance(node, ast.If) and not node.orelse else None


def _always(node: ast.AST) -> list[ast.stmt] | None:
    """Replace an ``if`` by its body."""
    return node.body if isinstance(node, ast.If) else None


def _repeat_statement(node: ast.AST) -> list[ast.stmt] | None:
    """Duplicate a statement."""
    if isinstance(node, ast.AugAssign | ast.Expr):
        return [node, copy.deepcopy(node)]
    return None


def _unwrap_call(node: ast.AST) -> ast.AST | None:
    """``f(x)`` to ``x``."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        argument = node.args[0]
        return None if isinstance(argument, ast.Starred | ast.GeneratorExp) else argument
    return None


def _drop_operand(node: ast.AST) -> ast.AST | None:
    """``a and b`` to ``a``."""
    return node.values[0] if isinstance(node, ast.BoolOp) else None


def _drop_term(node: ast.AST) -> ast.AST | None:
    """``a + b`` to ``a``, unless ``b`` is 1, which the agent can add."""
    if not isinstance(node, ast.BinOp):
        return None
    is_one = isinstance(node.right, ast.Constant) and node.right.value == 1
    return None if is_one else node.left


def _far_constant(node: ast.AST) -> ast.AST | None:
    """Change a number by more than the agent's edits do."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value not in (0, 1):
        return ast.Constant(node.value * 3 + 7)
    return None


def _cut_string(node: ast.AST) -> ast.AST | None:
    """Remove the last character of a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 1:
        return ast.Constant(node.value[:-1])
    return None


OPERATORS: dict[str, MutationOperator] = {
    "statement deleted": _delete_statement,
    "guard dropped": _drop_guard,
    "branch always taken": _always,
    "statement repeated": _repeat_statement,
    "call unwrapped": _unwrap_call,
    "operand dropped": _drop_operand,
    "term dropped": _drop_term,
    "constant far off": _far_constant,
    "string cut short": _cut_string,
}


def out_of_grammar_mutants(source: str, function: str) -> Iterator[tuple[str, str]]:
    """Yield operator and source of every mutant of *function*, one operator at one place each."""
    normal = ast.unparse(ast.parse(source))
    for kind, mutate in OPERATORS.items():
        place = 0
        while True:
            tree = ast.parse(normal)
            visitor = _Once(mutate, place)
            for definition in tree.body:
                if isinstance(definition, ast.FunctionDef) and definition.name == function:
                    definition.body = _flat([visitor.visit(item) for item in definition.body])
            if not visitor.done:
                break
            try:
                mutant = ast.unparse(ast.parse(ast.unparse(ast.fix_missing_locations(tree))))
            except (SyntaxError, ValueError):
                mutant = normal  # the operator made an invalid program
            if mutant != normal:
                yield kind, mutant
            place += 1


class _Once(ast.NodeTransformer):
    """Applies the operator once, at its *place*-th match in tree order."""

    def __init__(self, mutate: MutationOperator, place: int) -> None:
        self._mutate, self._left, self.done = mutate, place, False

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        if not self.done:
            made = self._mutate(node)
            if made is not None:
                if self._left == 0:
                    self.done = True
                    return made
                self._left -= 1
        visited: ast.AST = self.generic_visit(node)
        return visited


def _flat(body: list[ast.AST | list[ast.stmt]]) -> list[ast.stmt]:
    flat: list[ast.stmt] = []
    for item in body:
        if isinstance(item, list):
            flat += item
        elif isinstance(item, ast.stmt):
            flat.append(item)
    return flat
