"""Edits that replace an expression by another one that is in scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.edits.edit import Proposal, Site
from agents.se_darwin.edits.scope import is_value

_MAX_NAMES = 3
_MAX_MEMBERS = 8
_COMPOUND = (ast.BinOp, ast.Call, ast.Subscript, ast.Attribute)
_EMPTY = ("[]", "{}", "set()", "()")
_NUMBERS = ("0", "1", "-1", "None", "float('inf')", "float('-inf')")
_CONTAINERS = (*_EMPTY, "''", *_NUMBERS, "[[]]")
_GENERIC = ("0", "1", "-1", "None", "True", "False", "[]", "''")


def value_replaced(site: Site) -> Iterator[Proposal]:
    """A value by a variable, a number or a small constant, where none is replaced by another."""
    node = site.node
    if not isinstance(node, (ast.Name, ast.Constant, *_COMPOUND)) or not is_value(node):
        return
    if (
        isinstance(site.parent, ast.Expr | ast.JoinedStr | ast.FormattedValue)
        or site.role == "func"
    ):
        return
    node_text = ast.unparse(node)
    texts = list(_replacements(site, node))
    if isinstance(site.parent, ast.Assign | ast.Return | ast.Call | ast.Compare):
        texts += [text for text in site.scope.values if _is_alike(text, node)][:2]
    for text in dict.fromkeys(texts):
        known = isinstance(node, ast.Name) and text in site.scope.names  # `variable` does these
        if text != node_text and not known:
            yield Proposal(
                kind="value_replaced", old=node_text[:40], new=text, assign=site.replace_text(text)
            )


def _replacements(site: Site, node: ast.expr) -> Iterator[str]:
    scope = site.scope
    if not isinstance(node, ast.Name | ast.Constant):
        yield from scope.unused[:2]
    if isinstance(site.parent, ast.Return):
        yield from (*scope.returned[:4], *scope.names[:4], *_GENERIC)
    elif isinstance(node, ast.Constant):
        yield from (*scope.names[:_MAX_NAMES], *map(repr, scope.numbers[:2]))
        yield from scope.module.constants[:4]
        if isinstance(node.value, bool) or node.value is None:
            yield from _GENERIC
    elif isinstance(node, ast.Name):
        if node.id in scope.numeric and isinstance(site.parent, ast.Call | ast.Compare):
            yield from ("0", "1")
        if node.id in scope.names:
            yield from _members(site)
    elif _takes_constant(site):
        yield from (*scope.names[: _MAX_NAMES - 1], "0", "1")


def _members(site: Site) -> Iterator[str]:
    """Yield attributes of ``self`` and constants of the module."""
    module = site.scope.module
    yield from (f"self.{name}" for name in module.attributes[:_MAX_NAMES])
    yield from module.constants[:2]


def _takes_constant(site: Site) -> bool:
    parent = site.parent
    if isinstance(parent, ast.Call):
        return site.role == "args"
    return isinstance(parent, ast.Assign | ast.AugAssign | ast.Compare | ast.BinOp | ast.Slice) or (
        isinstance(parent, ast.Subscript) and site.role == "slice"
    )


def _is_alike(text: str, node: ast.expr) -> bool:
    """Whether the expression *text* shares a name with *node*, or *node* is a constant."""
    if isinstance(node, ast.Constant):
        return False
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return any(name in text for name in names) and text != ast.unparse(node)


def condition_replaced(site: Site) -> Iterator[Proposal]:
    """A condition by another one of the function; ``x`` by ``x is not None``."""
    node = site.node
    is_clause = isinstance(site.parent, ast.BoolOp)
    if not isinstance(node, ast.expr) or not (is_clause or site.role in ("test", "ifs")):
        return
    texts = [] if is_clause else list(site.scope.conditions[:6])
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, ast.Name | ast.Attribute):
        texts.append(f"{ast.unparse(inner)} is {'None' if negated else 'not None'}")
    if isinstance(site.parent, ast.While):
        texts.append("True")
    node_text = ast.unparse(node)
    for text in dict.fromkeys(texts):
        if text != node_text:
            yield Proposal(
                kind="condition_replaced",
                old=node_text[:40],
                new=text,
                assign=site.replace_text(text),
            )


def container(site: Site) -> Iterator[Proposal]:
    """A start value to another usual one, also to the first element of a parameter.

    ``[[]] * n`` becomes a list of different lists.
    """
    node = site.node
    if not isinstance(node, ast.expr):
        return
    node_text = ast.unparse(node)
    texts: list[str] = []
    if _is_start(site) and node_text in (*_CONTAINERS, "True", "False"):
        texts = [*_CONTAINERS]
        if node_text in _NUMBERS:
            texts += [f"{name}[0]" for name in site.scope.parameters if name in site.scope.sized]
    elif node_text in _EMPTY and site.role in ("args", "value", "orelse", "body"):
        texts = [*_CONTAINERS]
    elif _is_shared(node):
        element, count = ast.unparse(node.left.elts[0]), ast.unparse(node.right)  # type: ignore[attr-defined]
        texts = [f"[{element} for _ in range({count})]"]
    for text in dict.fromkeys(texts):
        if text != node_text:
            yield Proposal(
                kind="container", old=node_text[:40], new=text, assign=site.replace_text(text)
            )


def _is_shared(node: ast.expr) -> bool:
    """Whether *node* is a list that contains one object several times: ``[[]] * n``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    if not isinstance(node.left, ast.List) or len(node.left.elts) != 1:
        return False
    return isinstance(node.left.elts[0], ast.List | ast.Dict | ast.BinOp | ast.Call)


def _is_start(site: Site) -> bool:
    """Whether the expression is assigned, alone or as an element of a tuple."""
    if isinstance(site.parent, ast.Tuple):
        return isinstance(site.ancestors[1], ast.Assign)
    return isinstance(site.parent, ast.Assign | ast.AnnAssign) and site.role == "value"


def target(site: Site) -> Iterator[Proposal]:
    """Assign to another variable that the function assigns."""
    node = site.node
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        for name in site.scope.assigned[:4]:
            if name != node.id:
                yield Proposal(
                    kind="target", old=node.id, new=name, assign=site.set_field("id", name)
                )


def attribute(site: Site) -> Iterator[Proposal]:
    """Another attribute that the function uses of the same object, or its class of ``self``."""
    node = site.node
    if isinstance(node, ast.Attribute):
        owner, module = ast.unparse(node.value), site.scope.module
        others = [*site.scope.attributes.get(owner, ()), *module.enums.get(owner, ())]
        if owner == "self":
            is_method = site.role == "func" and isinstance(site.parent, ast.Call)
            others += (module.methods if is_method else module.attributes)[:_MAX_MEMBERS]
        for name in dict.fromkeys(others):
            if name != node.attr:
                yield Proposal(
                    kind="attribute",
                    old=node.attr,
                    new=name,
                    assign=site.set_field("attr", name),
                )


INGREDIENT_RULES = (value_replaced, condition_replaced, container, target, attribute)
