"""Canonical text of results as Python that is valid in a test."""

from __future__ import annotations

import ast
import io
import tokenize
from itertools import pairwise

_NUMBERS = ("inf", "nan")


def as_python(text: str) -> str:
    """Return *text*, which `agents.se_darwin.fork_server.canonical` made, as a person types it.

    Dates are written without the module ``datetime``, sets in braces, and a ``defaultdict`` as the
    dictionary that it equals. Text too deep for the parser stays as it is.
    """
    try:
        tree = ast.parse(_with_operators(text), mode="eval")
        return ast.unparse(_Rewriting().visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


def _with_operators(text: str) -> str:
    """Put ``@`` between a name and a brace: ``Counter{1: 2}`` cannot be parsed as Python.

    Raises:
        SyntaxError: *text* has no tokens.
    """
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except tokenize.TokenError as error:
        raise SyntaxError(str(error)) from None
    places = [
        brace.start[1]
        for name, brace in pairwise(tokens)
        if name.type == tokenize.NAME and brace.string == "{"
    ]
    for place in reversed(places):
        text = f"{text[:place]}@{text[place:]}"
    return text


class _Rewriting(ast.NodeTransformer):
    """Replaces each part that only canonical text contains."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Remove the module from ``datetime.date``."""
        if isinstance(node.value, ast.Name) and node.value.id == "datetime":
            return ast.Name(node.attr, ast.Load())
        self.generic_visit(node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Turn ``Counter@{1: 2}`` into a call."""
        self.generic_visit(node)
        if not (isinstance(node.op, ast.MatMult) and isinstance(node.left, ast.Name)):
            return node
        if node.left.id == "defaultdict":  # its text does not tell which function makes defaults
            return node.right
        return ast.Call(node.left, [node.right], [])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Write ``set(1, 2)`` in braces, and ``iterator(1, 2)`` as an iterator of a list."""
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "set" and node.args:
            return ast.Set(node.args)
        if name == "iterator":
            return ast.Call(ast.Name("iter", ast.Load()), [ast.List(node.args, ast.Load())], [])
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Write ``inf`` and ``nan`` as calls of ``float``."""
        if node.id in _NUMBERS:
            return ast.Call(ast.Name("float", ast.Load()), [ast.Constant(node.id)], [])
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Turn ``Stack[1, 2]``, an object of a class that inherits from list, into a call."""
        self.generic_visit(node)
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return ast.Call(node.value, [ast.List(items, ast.Load())], [])
