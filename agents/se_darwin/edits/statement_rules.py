"""Edits of statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import UnionType

from agents.se_darwin.edits.edit import Block, Proposal, Site, parse_expression, swap

_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr)


def loop_exit(site: Site) -> Iterator[Proposal]:
    """``break`` to ``continue`` and back."""
    if isinstance(site.node, ast.Break | ast.Continue):
        replacement = ast.Continue if isinstance(site.node, ast.Break) else ast.Break
        yield Proposal(
            kind="loop_exit",
            old=type(site.node).__name__,
            new=replacement.__name__,
            assign=site.replace(replacement),
        )


def assignment(site: Site) -> Iterator[Proposal]:
    """``x = e`` to ``x += e`` and back; ``x.a = e`` and ``x[k] = e`` also to ``-=``."""
    node = site.node
    if isinstance(node, ast.AugAssign):
        plain = site.replace(lambda: ast.Assign(targets=[node.target], value=node.value))
        yield Proposal(kind="assignment", old="AugAssign", new="Assign", assign=plain)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if not isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
            return
        operators = [ast.Add] if isinstance(target, ast.Name) else [ast.Add, ast.Sub]
        for operator in operators:
            yield Proposal(
                kind="assignment",
                old="Assign",
                new="AugAssign" if operator is ast.Add else f"AugAssign {operator.__name__}",
                assign=site.replace(
                    lambda operator=operator: ast.AugAssign(target, operator(), node.value)  # type: ignore[misc]
                ),
            )


def statement_order(site: Site) -> Iterator[Proposal]:
    """Exchange a simple statement with the one after it."""
    if site.index is None or not isinstance(site.node, _SIMPLE):
        return
    block = getattr(site.parent, site.role)
    if site.index + 1 < len(block) and isinstance(block[site.index + 1], _SIMPLE):
        exchange = swap(
            (site.parent, site.role, site.index), (site.parent, site.role, site.index + 1)
        )
        yield Proposal(
            kind="statement_order",
            old=type(site.node).__name__,
            new=type(block[site.index + 1]).__name__,
            assign=exchange,
        )


_MAX_RETURNED = 4
_RETURNED = ("True", "False", "0", "[]")


def return_value(site: Site) -> Iterator[Proposal]:
    """Exchange the values of two neighbouring ``return`` statements; give one that has none one."""
    node, scope = site.node, site.scope
    if isinstance(node, ast.Return) and node.value is None and not scope.yields:
        names = [name for name in scope.names if name not in scope.hidden][:_MAX_RETURNED]
        texts = (*scope.returned[:2], *names, *scope.values[:_MAX_RETURNED], *_RETURNED)
        for text in dict.fromkeys(texts):
            yield Proposal(
                kind="return_value",
                old="nothing",
                new=text,
                assign=lambda text=text: [((node, "value", None), parse_expression(text))],  # type: ignore[misc]
            )
    if not isinstance(node, ast.Return) or node not in site.scope.returns[:-1]:
        return
    following = site.scope.returns[site.scope.returns.index(node) + 1]
    exchange = swap((node, "value", None), (following, "value", None))
    yield Proposal(kind="return_value", old="this", new="next", assign=exchange)


def together(site: Site) -> Iterator[Proposal]:
    """``a = b; b = c`` to ``a, b = (b, c)`` and back; ``a = b`` to ``b = a``."""
    node = site.node
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not site.is_statement:
        return
    target, value = node.targets[0], node.value
    places = ast.Name | ast.Subscript | ast.Attribute
    if isinstance(target, places) and isinstance(value, places):
        text = f"{ast.unparse(value)} = {ast.unparse(target)}"
        yield Proposal(
            kind="assignment",
            old="Assign",
            new="swapped",
            assign=site.replace(lambda: ast.parse(text).body[0]),
        )
    following = None if site.is_last or site.index is None else site.block[site.index + 1]
    if (
        _is_plain(node, places)
        and isinstance(following, ast.Assign)
        and _is_plain(following, places)
    ):
        there = (site.parent, site.role, (site.index or 0) + 1)
        yield Proposal(
            kind="assignment",
            old="Assign",
            new="with the next",
            assign=lambda: [
                (site.slot, ast.copy_location(_joined(node, following), node)),
                (there, Block([])),
            ],
        )
        exchange = swap((node, "value", None), (following, "value", None))
        yield Proposal(kind="assignment", old="Assign", new="values swapped", assign=exchange)
    if (
        isinstance(target, ast.Tuple)
        and isinstance(value, ast.Tuple)
        and len(target.elts) == len(value.elts)
    ):
        yield Proposal(
            kind="assignment",
            old="Assign",
            new="one by one",
            assign=site.replace(lambda: _split(target, value)),
        )


def _is_plain(node: ast.Assign, places: UnionType) -> bool:
    return len(node.targets) == 1 and isinstance(node.targets[0], places)


def _joined(first: ast.Assign, second: ast.Assign) -> ast.Assign:
    targets: list[ast.expr] = [first.targets[0], second.targets[0]]
    return ast.Assign(
        [ast.Tuple(targets, ast.Store())], ast.Tuple([first.value, second.value], ast.Load())
    )


def _split(target: ast.Tuple, value: ast.Tuple) -> Block:
    if len(target.elts) != len(value.elts):  # another edit has changed the value
        return Block([ast.copy_location(ast.Assign([target], value), target)])
    pairs = zip(target.elts, value.elts, strict=True)
    return Block([ast.copy_location(ast.Assign([left], right), target) for left, right in pairs])


STATEMENT_RULES = (loop_exit, assignment, statement_order, return_value, together)
