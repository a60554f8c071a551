"""Edits that replace an expression by a part of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.edits.edit import Proposal, Site
from agents.se_darwin.edits.scope import is_value


def operand_removed(site: Site) -> Iterator[Proposal]:
    """``a + b`` to ``a`` or ``b``, ``a and b`` to ``a``, ``a if c else b`` to ``a``."""
    node = site.node
    if isinstance(node, ast.BinOp):
        kept: list[tuple[str, ast.expr]] = [("left", node.left), ("right", node.right)]
        if isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.right, ast.Constant):
            del kept[0 if node.right.value == 1 else 1]  # `offset` keeps the left of e + 1
        name = type(node.op).__name__
    elif isinstance(node, ast.IfExp):
        kept, name = [("body", node.body), ("orelse", node.orelse)], "IfExp"
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        kept = [(str(index), value) for index, value in enumerate(node.values)]
        name = type(node.op).__name__
    else:
        return
    for place, part in kept:
        yield Proposal(
            kind="operand_removed",
            old=name,
            new=f"only {place}",
            assign=site.replace(lambda part=part: part),  # type: ignore[misc]
        )


def clause_removed(site: Site) -> Iterator[Proposal]:
    """Remove one of three or more clauses, a link of ``a < b < c``, or a comprehension's ``if``."""
    node = site.node
    if isinstance(node, ast.BoolOp) and len(node.values) > 2:
        for index in range(len(node.values)):
            left = [value for place, value in enumerate(node.values) if place != index]
            yield Proposal(
                kind="clause_removed",
                old=f"{type(node.op).__name__} {index}",
                new="nothing",
                assign=site.set_field("values", left),
            )
    elif isinstance(node, ast.Compare) and len(node.ops) == 2:
        low, middle, high = node.left, *node.comparators
        for place, (first, operator, second) in enumerate(
            ((low, node.ops[0], middle), (middle, node.ops[1], high))
        ):
            yield Proposal(
                kind="clause_removed",
                old="chain",
                new=f"only {place}",
                assign=site.replace(
                    lambda first=first, operator=operator, second=second: ast.Compare(  # type: ignore[misc]
                        left=first, ops=[operator], comparators=[second]
                    )
                ),
            )
    elif isinstance(node, ast.comprehension):
        for index in range(len(node.ifs)):
            left = [test for place, test in enumerate(node.ifs) if place != index]
            yield Proposal(
                kind="clause_removed",
                old=f"filter {index}",
                new="nothing",
                assign=site.set_field("ifs", left),
            )


def call_removed(site: Site) -> Iterator[Proposal]:
    """``f(x)`` and ``x.f()`` to ``x``."""
    node = site.node
    if not isinstance(node, ast.Call) or not is_value(node):
        return
    for index, argument in enumerate(node.args[:2]):
        if not isinstance(argument, ast.Starred | ast.GeneratorExp):
            yield Proposal(
                kind="call_removed",
                old=ast.unparse(node.func)[-20:],
                new=f"argument {index}",
                assign=site.replace(lambda argument=argument: argument),  # type: ignore[misc]
            )
    called = node.func
    if isinstance(called, ast.Attribute) and not isinstance(site.parent, ast.Expr):
        yield Proposal(
            kind="call_removed",
            old=called.attr,
            new="object",
            assign=site.replace(lambda: called.value),
        )


def index_removed(site: Site) -> Iterator[Proposal]:
    """``x[i]`` and ``x[a:b]`` to ``x``; one bound of ``x[a:b]`` or its step to nothing."""
    node = site.node
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield Proposal(
            kind="index_removed",
            old=ast.unparse(node.slice)[:20],
            new="nothing",
            assign=site.replace(lambda: node.value),
        )
    elif isinstance(node, ast.Slice):
        for side in ("lower", "upper", "step"):
            if getattr(node, side) is not None:
                yield Proposal(
                    kind="index_removed",
                    old=side,
                    new="nothing",
                    assign=site.set_field(side, None),
                )


def argument_removed(site: Site) -> Iterator[Proposal]:
    """Remove an argument of a call, or an element of a tuple or list."""
    node = site.node
    if isinstance(node, ast.Call):
        roles = [("args", len(node.args)), ("keywords", len(node.keywords))]
        if not node.keywords and len(node.args) == 1 and isinstance(site.parent, ast.Expr):
            roles = []
    elif isinstance(node, ast.Tuple | ast.List) and isinstance(node.ctx, ast.Load):
        roles = [("elts", len(node.elts) if len(node.elts) <= 4 else 0)]
    else:
        return
    for role, count in roles:
        for index in range(count):
            left = [part for place, part in enumerate(getattr(node, role)) if place != index]
            yield Proposal(
                kind="argument_removed",
                old=f"{role} {index}",
                new="nothing",
                assign=site.set_field(role, left),
            )


SHRINK_RULES = (operand_removed, clause_removed, call_removed, index_removed, argument_removed)
