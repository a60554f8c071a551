"""Edits of what a function makes of its parameters before it begins."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from agents.se_darwin.edits.edit import Assignment, Block, Proposal, Site, Slot, statement_in
from agents.se_darwin.edits.nodes import FunctionNode

_MAX_PARAMETERS = 3
_USUAL_DEFAULTS = ("[]", "{}", "0", "''")


def parameter_normalised(site: Site) -> Iterator[Proposal]:
    """Begin the function with ``p = list(p)``, ``p = abs(p)``, ``p = p.lower()`` and the like."""
    if not site.is_first_of_function:
        return
    scope = site.scope
    for name in scope.parameters[:_MAX_PARAMETERS]:
        values: list[str] = []
        if name in scope.sized and name not in scope.texts:
            values += [f"list({name})", f"sorted({name})", f"{name}.copy()"]
        if name in scope.texts or (name in scope.sized and scope.strings):
            values += [f"{name}.lower()", f"{name}.strip()", f"str({name})"]
        if name in scope.numeric:
            values += [f"abs({name})", f"int({name})", f"str({name})"]
        for value in dict.fromkeys(values):
            yield site.insertion("parameter_normalised", before=[f"{name} = {value}"])


def default_replaced(site: Site) -> Iterator[Proposal]:
    """``p=[]`` to ``p=None`` with ``if p is None: p = []``; only the latter where it is None."""
    if not site.is_first_of_function or not isinstance(site.parent, FunctionNode):
        return
    for name, slot, default in _defaults(site.parent.args):
        text = ast.unparse(default)
        is_none = text == "None"
        if not is_none and not isinstance(default, ast.List | ast.Dict | ast.Set | ast.Call):
            continue
        for value in _USUAL_DEFAULTS if is_none else (text,):
            first = f"if {name} is None:\n    {name} = {value}"
            yield Proposal(
                kind="default_replaced",
                old=f"{name}={text}"[:40],
                new=first.replace("\n    ", " "),
                assign=_with_none(site, slot, first),
            )


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, Slot, ast.expr]]:
    """Yield the parameters that have a default, with its slot."""
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    for index, default in enumerate(arguments.defaults):
        yield positional[without + index].arg, (arguments, "defaults", index), default
    for index, named in enumerate(arguments.kw_defaults):
        if named is not None:
            yield arguments.kwonlyargs[index].arg, (arguments, "kw_defaults", index), named


def _with_none(site: Site, default: Slot, first: str) -> Callable[[], Sequence[Assignment]]:
    def assign() -> Sequence[Assignment]:
        body = [*ast.parse(first).body, statement_in(site.slot)]
        return [(default, ast.Constant(None)), (site.slot, Block(body))]

    return assign


PARAMETER_RULES = (parameter_normalised, default_replaced)
