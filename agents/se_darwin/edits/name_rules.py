"""Edits of names that nothing defines, and of members that are named without their object."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import get_close_matches

from agents.se_darwin.edits.edit import Proposal, Site
from agents.se_darwin.edits.scope import is_value

_MAX_NAMES = 6
_CALLED = ("list", "str", "dict", "set", "tuple", "int", "input", "max", "min", "sum", "len", "id")
_METHODS = (
    *("lower", "upper", "strip", "split", "keys", "values", "items", "copy", "pop", "isdigit"),
    *("isalpha", "isalnum", "isupper", "islower", "title", "capitalize", "popleft", "sort"),
)


def unknown_name(site: Site) -> Iterator[Proposal]:
    """A name that nothing defines, or a builtin that is not a value, to another, here or all."""
    node, scope = site.node, site.scope
    if not isinstance(node, ast.Name) or not is_value(node):
        return
    if node.id in scope.unknown:
        known = (*scope.names, *scope.module.functions, *scope.module.constants)
        others = get_close_matches(node.id, known, n=3, cutoff=0.6)
        others += [*scope.inner, *scope.names][:_MAX_NAMES]
    elif node.id in _CALLED and site.role in ("iter", "value", "left", "comparators", "args"):
        others = [*scope.parameters, *scope.names][:_MAX_NAMES]
    else:
        return
    uses = scope.uses.get(node.id, ())
    for name in dict.fromkeys(others):
        yield Proposal(kind="variable", old=node.id, new=name, assign=site.set_field("id", name))
        if len(uses) > 1 and uses[0] is node:
            yield Proposal(
                kind="variable",
                old=f"{node.id}, everywhere",
                new=name,
                assign=lambda name=name: [((use, "id", None), name) for use in uses],  # type: ignore[misc]
            )


def start_added(site: Site) -> Iterator[Proposal]:
    """Begin the function with a start value of a variable that is used before it is assigned."""
    if not site.is_first_of_function:
        return
    for name, values in site.scope.unset.items():
        for value in values:
            yield site.insertion("update_added", before=[f"{name} = {value}"])


def member(site: Site) -> Iterator[Proposal]:
    """``x`` to ``self.x`` if the class has it, and back; ``x.f`` to ``x.f()`` and back."""
    node, scope = site.node, site.scope
    members = (*scope.module.attributes, *scope.module.methods)
    if isinstance(node, ast.Name) and node.id in members:
        yield Proposal(
            kind="attribute",
            old=node.id,
            new=f"self.{node.id}",
            assign=site.replace(
                lambda: ast.Attribute(ast.Name("self", ast.Load()), node.id, node.ctx)
            ),
        )
    if isinstance(node, ast.Attribute) and is_value(node) and site.role != "func":
        owner = getattr(node.value, "id", "")
        if owner == "self" and node.attr in scope.names:
            yield Proposal(
                kind="attribute",
                old=f"self.{node.attr}",
                new=node.attr,
                assign=site.replace(lambda: ast.Name(node.attr, ast.Load())),
            )
        if node.attr in _METHODS or (owner == "self" and node.attr in scope.module.methods):
            yield Proposal(
                kind="method_added",
                old="nothing",
                new="()",
                assign=site.replace(lambda: ast.Call(node, [], [])),
            )
    elif isinstance(node, ast.Call) and not node.args and not node.keywords:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in scope.module.attributes:
            yield Proposal(
                kind="call_removed", old="()", new="nothing", assign=site.replace(lambda: called)
            )


def whole_duration(site: Site) -> Iterator[Proposal]:
    """``x.seconds`` to ``x.total_seconds()``: the seconds of a duration lack its days."""
    node = site.node
    if isinstance(node, ast.Attribute) and node.attr == "seconds" and is_value(node):
        yield Proposal(
            kind="attribute",
            old="seconds",
            new="total_seconds()",
            assign=site.replace(
                lambda: ast.Call(ast.Attribute(node.value, "total_seconds", ast.Load()), [], [])
            ),
        )


NAME_RULES = (unknown_name, start_added, member, whole_duration)
