"""Edits that use a parameter or a variable that the function never reads: it was meant for one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.edits.edit import Proposal, Site, parse_expression
from agents.se_darwin.edits.scope import is_value

_MAX_NAMES = 2
_MAX_POSITIONS = 3
_FACTORS = ("{1}", "{} * {}", "{} / {}", "{} // {}", "{} % {}", "{} + {}", "{} - {}")
_PARTS = ("{}[:{}]", "{}[{}:]", "{}[{}]")
_WHOLE = ast.Name | ast.Attribute | ast.Subscript | ast.BinOp | ast.Call
_OWNERS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Yield


def unused_name(site: Site) -> Iterator[Proposal]:
    """``x`` to ``x * u`` or ``x[:u]``, ``f(x)`` to ``f(u, x)``: ``u`` is never read."""
    node, names = site.node, site.scope.idle[:_MAX_NAMES]
    if not names or not isinstance(node, ast.expr) or not is_value(node):
        return
    if isinstance(node, ast.Call) and not any(isinstance(x, ast.Starred) for x in node.args):
        texts = [*names, *(text for name in names for text in _treated_alike(node, name))]
        for text in texts:
            for place in range(min(len(node.args) + 1, _MAX_POSITIONS)):
                added = [*node.args[:place], parse_expression(text), *node.args[place:]]
                yield Proposal(
                    kind="argument_added",
                    old=f"unused args {place}",
                    new=text,
                    assign=site.set_field("args", added),
                )
    if isinstance(node, _WHOLE) and _is_whole(site):
        text = ast.unparse(node)
        operand = f"({text})" if isinstance(node, ast.BinOp) else text
        for name in names:
            if isinstance(node, ast.Name) and node.id == name:
                continue
            for form in _FACTORS:
                yield Proposal(
                    kind="term_added",
                    old="unused",
                    new=form.format("x", name),
                    assign=site.replace_text(form.format(operand, name)),
                )
            for form in () if isinstance(node, ast.BinOp) else _PARTS:
                yield Proposal(
                    kind="index_added",
                    old="unused",
                    new=form.format("x", name),
                    assign=site.replace_text(form.format(text, name)),
                )


def _treated_alike(node: ast.Call, name: str) -> Iterator[str]:
    """Yield ``g(name)`` if the first argument of the call is ``g(x)``."""
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Call) and len(first.args) == 1 and not first.keywords:
        yield f"{ast.unparse(first.func)}({name})"


def _is_whole(site: Site) -> bool:
    """Whether the expression is a whole value, an argument, or what a comprehension collects."""
    if site.role in ("args", "elt", "iter"):
        return True
    return site.role == "value" and isinstance(site.parent, _OWNERS)


UNUSED_RULES = (unused_name,)
