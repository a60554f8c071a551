"""Edits of calls of the program's own functions and classes, whose signatures are known."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.edits.edit import Proposal, Site, parse_expression
from agents.se_darwin.edits.nodes import FunctionNode

_MAX_METHODS = 3
_KEYWORD_FAMILIES = (
    ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds"),
    ("year", "month", "day", "hour", "minute", "second", "microsecond"),
)


def argument_given(site: Site) -> Iterator[Proposal]:
    """``f(x)`` to ``f(x, y)`` or ``f(x, y=y)`` where ``f`` has a parameter ``y``.

    The argument is the variable of that name or the attribute of ``self``.
    """
    node = site.node
    if not isinstance(node, ast.Call) or any(isinstance(x, ast.Starred) for x in node.args):
        return
    parameters = site.scope.module.signatures.get(_called(node), ())
    given = {keyword.arg for keyword in node.keywords}
    for place, parameter in enumerate(parameters[len(node.args) :]):
        value = _value_of(site, parameter)
        if parameter in given or not value:
            continue
        if place == 0 and not node.keywords:
            added = [*node.args, parse_expression(value)]
            yield Proposal(
                kind="argument_added",
                old=f"args {len(node.args)}",
                new=value,
                assign=site.set_field("args", added),
            )
        keyword = ast.keyword(parameter, parse_expression(value))
        yield Proposal(
            kind="argument_added",
            old="keywords",
            new=f"{parameter} {value}",
            assign=site.set_field("keywords", [*node.keywords, keyword]),
        )


def keyword_name(site: Site) -> Iterator[Proposal]:
    """``minutes=n`` to ``seconds=n``; a keyword to another parameter of the function called."""
    node = site.node
    if not isinstance(node, ast.keyword) or node.arg is None:
        return
    call = site.parent
    if not isinstance(call, ast.Call):
        return
    taken = {keyword.arg for keyword in call.keywords}
    parameters = site.scope.module.signatures.get(_called(call), ())
    others = [*parameters[len(call.args) :]]
    others += [name for family in _KEYWORD_FAMILIES if node.arg in family for name in family]
    for name in dict.fromkeys(others):
        if name not in taken:
            yield Proposal(
                kind="attribute",
                old=f"{node.arg}=",
                new=f"{name}=",
                assign=site.set_field("arg", name),
            )


def member_used(site: Site) -> Iterator[Proposal]:
    """At the end of a method, ``self.x = x`` of a parameter that it never reads, or ``self.f()``.

    ``f`` is a method of the class without parameters.
    """
    node, scope = site.node, site.scope
    is_end = site.is_statement and site.is_last and isinstance(site.parent, FunctionNode)
    if not is_end or "self" not in scope.names or len(site.ancestors) > 1:
        return
    texts = [
        f"self.{name} = {name}"
        for name in scope.parameters
        if name not in scope.uses and name in scope.module.attributes
    ]
    texts += [
        f"self.{name}()"
        for name in scope.module.methods
        if scope.module.signatures.get(name) == () and name not in scope.inner
    ][:_MAX_METHODS]
    for text in texts:
        if isinstance(node, ast.Return):
            yield site.insertion("update_added", before=[text])
        else:
            yield site.insertion("update_added", after=[text])


def _called(call: ast.Call) -> str:
    """Name of a function or class, or of a method of ``self`` or ``cls``; empty for others."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") in ("self", "cls"):
        return function.attr
    return ""


def _value_of(site: Site, parameter: str) -> str:
    if parameter in site.scope.names:
        return parameter
    for name in (parameter, f"_{parameter}"):
        if name in site.scope.module.attributes and "self" in site.scope.names:
            return f"self.{name}"
    return ""


SIGNATURE_RULES = (argument_given, keyword_name, member_used)
