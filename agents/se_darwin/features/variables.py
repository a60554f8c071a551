"""Roles and types of a function's variables: what is learned about them holds for other names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

# Types of values by the function or method that returns them, then types of objects by the method
# that is called on them.
_CALL_TYPES = {
    **dict.fromkeys(("abs", "count", "find", "float", "int", "len"), "number"),
    **dict.fromkeys(("ord", "round", "sum"), "number"),
    **dict.fromkeys(("chr", "format", "join", "lower", "replace"), "text"),
    **dict.fromkeys(("repr", "str", "strip", "upper"), "text"),
    **dict.fromkeys(("list", "sorted", "split"), "list"),
    "dict": "dict",
    "set": "set",
    "tuple": "tuple",
}
_METHOD_OWNERS = {
    **dict.fromkeys(("append", "extend", "insert", "sort"), "list"),
    **dict.fromkeys(("find", "lower", "replace", "split", "startswith", "strip"), "text"),
    **dict.fromkeys(("items", "keys"), "dict"),
    "add": "set",
}
_CONSTANT_TYPES = {bool: "bool", int: "number", float: "number", str: "text", bytes: "text"}
_NODE_TYPES: dict[type[ast.AST], str] = {
    ast.Compare: "bool",
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.JoinedStr: "text",
    ast.List: "list",
    ast.ListComp: "list",
    ast.Set: "set",
    ast.SetComp: "set",
    ast.Tuple: "tuple",
}
GROWING_METHODS = ("append", "extend", "add", "insert", "update")
_TOKEN = re.compile(r"[^\W\d]\w*|\d+(?:\.\d+)?|'[^']*'?|\"[^\"]*\"?")
_NAME = re.compile(r"[^\W\d]\w*")
_LONGEST = 40  # characters of a described token


class Variables:
    """Describes the names of one function by role and type.

    The role is that of a parameter, of a loop's item or index, of a variable that grows in a loop,
    or of another local one. The type is a guess from literals, calls and operators; ``?`` if
    nothing tells it.

    Args:
        nodes: Nodes of the function.

    Attributes:
        roles: Role of each variable.
        types: Type of each variable whose type is known.
    """

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.roles: dict[str, str] = {}
        self.types: dict[str, str] = {}
        for node in nodes:
            for name, role, value_type in _facts(node):
                if role and self.roles.get(name, "local") == "local":
                    self.roles[name] = role
                if value_type != "?":
                    self.types.setdefault(name, value_type)
        self._described: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}

    def describe(self, token: str) -> str:
        """Return *token* with its variables and literals replaced by what they are.

        Names of functions, methods and operators stay.
        """
        described = self._described.get(token)
        if described is None:
            described = self._described[token] = _TOKEN.sub(self._replace, token)[:_LONGEST]
        return described

    def type_of(self, node: ast.AST) -> str:
        """Return the type of an expression, or ``?``."""
        return self.types.get(node.id, "?") if isinstance(node, ast.Name) else _type_of(node)

    def names_in(self, token: str) -> list[str]:
        """Return the variables that *token* contains, in order."""
        variables = self._names.get(token)
        if variables is None:
            names = [name for name in _NAME.findall(token) if name in self.roles]
            variables = self._names[token] = list(dict.fromkeys(names))
        return variables

    def _replace(self, match: re.Match[str]) -> str:
        text = match[0]
        if text in self.roles:
            return self.roles[text]
        if text[0].isdigit():
            return text if text in ("0", "1", "2") else "float" if "." in text else "number"
        if text[0] in "'\"":
            return "empty" if len(text) <= 2 else "character" if len(text) == 3 else "string"
        return text


def _facts(node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield variables with the role and type that *node* tells of them; "" and "?" if none."""
    if isinstance(node, ast.arg):
        yield node.arg, "parameter", "?"
    elif isinstance(node, ast.For | ast.comprehension):
        yield from _loop_facts(node)
    elif isinstance(node, ast.AugAssign | ast.Assign):
        yield from _assignment_facts(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        role = "total" if node.func.attr in GROWING_METHODS else ""
        yield from _if_name(node.func.value, role, _METHOD_OWNERS.get(node.func.attr, "?"))
    elif isinstance(node, ast.Subscript):
        yield from _if_name(node.slice, "", "number")
    elif isinstance(node, ast.Compare | ast.BinOp):
        sides = [node.left, *([node.right] if isinstance(node, ast.BinOp) else node.comparators)]
        common = _common_type(sides)
        if common != "?":
            for side in sides:
                yield from _if_name(side, "", common)


def _if_name(node: ast.AST, role: str, value_type: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(node, ast.Name):
        yield node.id, role, value_type


def _loop_facts(node: ast.For | ast.comprehension) -> Iterator[tuple[str, str, str]]:
    called = _called(node.iter)
    targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
    for position, target in enumerate(targets):
        is_index = called == "range" or (called == "enumerate" and position == 0)
        yield from _if_name(target, *(("index", "number") if is_index else ("item", "?")))


def _assignment_facts(node: ast.AugAssign | ast.Assign) -> Iterator[tuple[str, str, str]]:
    if isinstance(node, ast.AugAssign):
        yield from _if_name(node.target, "total", _type_of(node.value))
        return
    for target in node.targets:
        yield from _if_name(target, "local", _type_of(node.value))
        for element in target.elts if isinstance(target, ast.Tuple) else ():
            yield from _if_name(element, "local", "?")


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _type_of(node: ast.AST) -> str:
    """Guess the type of a value: ``number``, ``text``, ``list``, ... or ``?``."""
    if isinstance(node, ast.Constant):
        return _CONSTANT_TYPES.get(type(node.value), "?")
    if isinstance(node, ast.BinOp):
        return _common_type([node.left, node.right])
    return _NODE_TYPES.get(type(node)) or _CALL_TYPES.get(_called(node), "?")


def _common_type(nodes: Sequence[ast.AST]) -> str:
    """Return the type of all *nodes* whose type is known; ``?`` if these differ or are none."""
    types = {_type_of(node) for node in nodes} - {"?"}
    return min(types) if len(types) == 1 else "?"
