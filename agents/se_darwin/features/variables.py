"""Roles and types of a function's variables: what is learned about them holds for other names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

_CALL_TYPES = {"len": "number", "int": "number", "sum": "number", "abs": "number", "ord": "number"}
_CALL_TYPES |= {"float": "number", "round": "number", "str": "text", "chr": "text", "repr": "text"}
_CALL_TYPES |= {"list": "list", "sorted": "list", "dict": "dict", "set": "set", "tuple": "tuple"}
_CALL_TYPES |= {"join": "text", "strip": "text", "lower": "text", "upper": "text", "find": "number"}
_CALL_TYPES |= {"replace": "text", "split": "list", "format": "text", "count": "number"}
_METHOD_OWNERS = {"append": "list", "extend": "list", "insert": "list", "sort": "list"}
_METHOD_OWNERS |= {"strip": "text", "split": "text", "lower": "text", "startswith": "text"}
_METHOD_OWNERS |= {"find": "text", "replace": "text", "items": "dict", "keys": "dict", "add": "set"}
_CONSTANT_TYPES = {bool: "bool", int: "number", float: "number", str: "text", bytes: "text"}
_NODE_TYPES: dict[type[ast.AST], str] = {ast.List: "list", ast.ListComp: "list", ast.Dict: "dict"}
_NODE_TYPES |= {ast.JoinedStr: "text", ast.Compare: "bool", ast.Tuple: "tuple", ast.Set: "set"}
_NODE_TYPES |= {ast.DictComp: "dict", ast.SetComp: "set"}
GROWING_METHODS = ("append", "extend", "add", "insert", "update")
_TOKEN = re.compile(r"[^\W\d]\w*|\d+(?:\.\d+)?|'[^']*'?|\"[^\"]*\"?")
_NAME = re.compile(r"[^\W\d]\w*")
_LONGEST = 40


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
            for name, role, kind in _facts(node):
                if role and self.roles.get(name, "local") == "local":
                    self.roles[name] = role
                if kind != "?":
                    self.types.setdefault(name, kind)
        self._described: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}

    def describe(self, token: str) -> str:
        """Return *token* with its variables and literals replaced by what they are.

        Names of functions, methods and operators stay.
        """
        found = self._described.get(token)
        if found is None:
            found = self._described[token] = _TOKEN.sub(self._replace, token)[:_LONGEST]
        return found

    def type_of(self, node: ast.AST) -> str:
        """Return the type of an expression, or ``?``."""
        return self.types.get(node.id, "?") if isinstance(node, ast.Name) else _type_of(node)

    def names_in(self, token: str) -> list[str]:
        """Return the variables that *token* contains, in order."""
        found = self._names.get(token)
        if found is None:
            names = [name for name in _NAME.findall(token) if name in self.roles]
            found = self._names[token] = list(dict.fromkeys(names))
        return found

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
    """Yield names with the role and type that *node* gives them."""
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
        sides = [node.left, node.right] if isinstance(node, ast.BinOp) else _sides(node)
        kinds = {_type_of(side) for side in sides} - {"?"}
        if len(kinds) == 1:
            for side in sides:
                yield from _if_name(side, "", min(kinds))


def _if_name(node: ast.AST, role: str, kind: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(node, ast.Name):
        yield node.id, role, kind


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
        for each in target.elts if isinstance(target, ast.Tuple) else ():
            yield from _if_name(each, "local", "?")


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _type_of(node: ast.AST) -> str:
    """Guess the type of a value: ``number``, ``text``, ``list``, ... or ``?``."""
    if isinstance(node, ast.Constant):
        return _CONSTANT_TYPES.get(type(node.value), "?")
    if isinstance(node, ast.BinOp):
        kinds = {_type_of(node.left), _type_of(node.right)} - {"?"}
        return min(kinds) if len(kinds) == 1 else "?"
    return _NODE_TYPES.get(type(node)) or _CALL_TYPES.get(_called(node), "?")
