"""Edits of statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.edits.edit import Proposal, Site, swap

_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr)


def loop_exit(site: Site) -> Iterator[Proposal]:
    """``break`` to ``continue`` and back."""
    if isinstance(site.node, ast.Break | ast.Continue):
        other = ast.Continue if isinstance(site.node, ast.Break) else ast.Break
        yield Proposal(
            kind="loop_exit",
            old=type(site.node).__name__,
            new=other.__name__,
            assign=site.replace(other),
        )


def assignment(site: Site) -> Iterator[Proposal]:
    """``x = e`` to ``x += e`` and back."""
    node = site.node
    if isinstance(node, ast.AugAssign):
        plain = site.replace(lambda: ast.Assign(targets=[node.target], value=node.value))
        yield Proposal(kind="assignment", old="AugAssign", new="Assign", assign=plain)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Name):
            added = site.replace(
                lambda: ast.AugAssign(target=target, op=ast.Add(), value=node.value)
            )
            yield Proposal(kind="assignment", old="Assign", new="AugAssign", assign=added)


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


def return_value(site: Site) -> Iterator[Proposal]:
    """Exchange the values of two neighbouring ``return`` statements."""
    node = site.node
    if not isinstance(node, ast.Return) or node not in site.scope.returns[:-1]:
        return
    following = site.scope.returns[site.scope.returns.index(node) + 1]
    exchange = swap((node, "value", None), (following, "value", None))
    yield Proposal(kind="return_value", old="this", new="next", assign=exchange)


STATEMENT_RULES = (loop_exit, assignment, statement_order, return_value)
