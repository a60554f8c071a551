"""Edits that give a condition one more clause, or make a condition of a value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.edits.edit import Proposal, Site, parse_expression
from agents.se_darwin.edits.scope import Scope

_MAX_NAMES = 2
_MAX_CONDITIONS = 5
_MAX_CLAUSES = 4
_MAX_FLAGS = 3
_MAX_MEMBERS = 4


def clause_added(site: Site) -> Iterator[Proposal]:
    """``c`` to ``c and d`` or ``c or d``: a condition of the function, or a variable."""
    node = site.node
    if not isinstance(node, ast.expr) or not _is_condition(site):
        return
    node_text = ast.unparse(node)
    clauses = [text for text in site.scope.conditions if text not in node_text][:_MAX_CONDITIONS]
    truths = [name for name in site.scope.names[:_MAX_NAMES] if name not in clauses]
    for operator in (ast.And, ast.Or):
        for text in clauses:
            yield _clause(site, node, operator, text, first=False)
        for text in _reachable(site, operator):
            yield _clause(site, node, operator, text, first=True)
        for text in _alike(site):
            yield _clause(site, node, operator, text, first=False)
        for text in _declared(site.scope):
            if text not in node_text:
                yield _clause(site, node, operator, text, first=True)
        for text in truths:  # before the condition, which may need it
            for test in (text, f"not {text}"):
                yield _clause(site, node, operator, test, first=True)


def _clause(
    site: Site, node: ast.expr, operator: type[ast.boolop], text: str, *, first: bool
) -> Proposal:
    def build() -> ast.expr:
        values = [parse_expression(text), node]
        return ast.BoolOp(operator(), values if first else values[::-1])

    return Proposal(
        kind="clause_added",
        old="nothing",
        new=f"{operator.__name__} {text}",
        assign=site.replace(build),
    )


def filter_added(site: Site) -> Iterator[Proposal]:
    """``[e for x in y]`` to ``[e for x in y if x]``, or with a condition of the function."""
    node = site.node
    if not isinstance(node, ast.comprehension) or not isinstance(node.target, ast.Name):
        return
    name = node.target.id
    flags = [text for text in _declared(site.scope) if f"{name}." in text]
    for text in (name, f"not {name}", *site.scope.conditions[:3], *flags):
        added = [*node.ifs, parse_expression(text)]
        yield Proposal(
            kind="filter_added", old="nothing", new=text, assign=site.set_field("ifs", added)
        )


def _declared(scope: Scope) -> list[str]:
    """Conditions from what classes of the module declare: ``x.flag``, ``x is Kind.MEMBER``."""
    owners = [name for name in scope.names if name in scope.attributes][:_MAX_NAMES]
    clauses = [f"{owner}.{flag}" for owner in owners for flag in scope.module.flags[:_MAX_FLAGS]]
    clauses = [text for clause in clauses for text in (clause, f"not {clause}")]
    for name in scope.parameters:
        for enum, members in scope.module.enums.items():
            if enum == scope.annotated.get(name) or enum.lower() == name:
                for member in members[:_MAX_MEMBERS]:
                    clauses += [f"{name} {how} {enum}.{member}" for how in ("is", "is not")]
    return clauses


def _reachable(site: Site, operator: type[ast.boolop]) -> list[str]:
    """Clauses that keep an index in its bounds, or that ask whether a key is known."""
    scope = site.scope
    clauses: list[str] = []
    for text in scope.places:
        place = parse_expression(text)
        if not isinstance(place, ast.Subscript) or isinstance(place.slice, ast.Constant):
            continue
        index, owner = ast.unparse(place.slice), ast.unparse(place.value)
        first, last, known = f"{index} >= 0", f"{index} < len({owner})", f"{index} in {owner}"
        if operator is ast.Or:
            first, last, known = (
                f"{index} < 0",
                f"{index} >= len({owner})",
                f"{index} not in {owner}",
            )
        clauses += [last, first] if _may_be_index(place.slice, scope.numeric) else []
        clauses += [known] if index not in scope.numeric or owner not in scope.lists else []
    for owner in (*scope.sets, *scope.lists)[:1]:
        form = "{} not in {}" if operator is ast.And else "{} in {}"
        clauses += [form.format(name, owner) for name in scope.names if name != owner][:_MAX_NAMES]
    return list(dict.fromkeys(clauses))[:_MAX_CLAUSES]


def _alike(site: Site) -> list[str]:
    """Comparisons with a number like the condition itself, of another variable or number."""
    node, scope = site.node, site.scope
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return []
    right, used = node.comparators[0], scope.uses
    if not isinstance(right, ast.Constant) or type(right.value) not in (int, float):
        return []
    owners = [part.id for part in ast.walk(node.left) if isinstance(part, ast.Name)]
    owners = [name for name in owners if name in scope.names]
    if len(set(owners)) != 1:
        return []
    operators = _ALIKE.get(type(node.ops[0]), ())
    others = [name for name in scope.names if name not in owners and name in used][:_MAX_ALIKE]
    numbers = [right.value, *(number for number in scope.numbers if number != right.value)]
    left = ast.unparse(node.left)
    return [
        f"{_renamed(left, owners[0], name)} {operator} {number!r}"
        for name in others
        for number in numbers[:3]
        for operator in operators
    ]


_ALIKE: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Eq: ("==",),
    ast.NotEq: ("!=",),
}
_MAX_ALIKE = 4


def _renamed(text: str, old: str, new: str) -> str:
    tree = parse_expression(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == old:
            node.id = new
    return ast.unparse(tree)


def _may_be_index(index: ast.expr, numeric: tuple[str, ...]) -> bool:
    return isinstance(index, ast.BinOp) or getattr(index, "id", "") in numeric


def compared(site: Site) -> Iterator[Proposal]:
    """``x`` as a condition or a result to ``x == 0``, ``x > 0`` and the like."""
    node = site.node
    if not isinstance(node, ast.Name | ast.Call | ast.BinOp | ast.Attribute | ast.Subscript):
        return
    is_result = isinstance(site.parent, ast.Return) and isinstance(node, ast.BinOp)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "len") != "len":
        return
    if not is_result and not (site.role in ("test", "ifs") or isinstance(site.parent, ast.BoolOp)):
        return
    node_text = ast.unparse(node)
    node_text = f"({node_text})" if isinstance(node, ast.BinOp) else node_text
    for text in ("== 0", "!= 0", "> 0", "== 1", "> 1"):
        yield Proposal(
            kind="condition_replaced",
            old=node_text[:40],
            new=f"x {text}",
            assign=site.replace_text(f"{node_text} {text}"),
        )


def default_of_none(site: Site) -> Iterator[Proposal]:
    """``x or d`` as a value to ``d if x is None else x``: 0 and an empty text are values, too."""
    node = site.node
    if not isinstance(node, ast.BoolOp) or not isinstance(node.op, ast.Or) or len(node.values) != 2:
        return
    value, default = node.values
    if isinstance(value, ast.Name | ast.Attribute | ast.Subscript) and not (
        site.role in ("test", "ifs") or isinstance(site.parent, ast.BoolOp)
    ):
        value_text = ast.unparse(value)
        yield Proposal(
            kind="condition_replaced",
            old="Or",
            new="is None",
            assign=site.replace_text(
                f"({ast.unparse(default)} if {value_text} is None else {value_text})"
            ),
        )


def _is_condition(site: Site) -> bool:
    """Whether the expression is a whole condition."""
    if isinstance(site.node, ast.Constant):
        return False
    if isinstance(site.parent, ast.If | ast.While | ast.IfExp) and site.role == "test":
        return True
    if isinstance(site.parent, ast.comprehension) and site.role == "ifs":
        return True
    is_truth = isinstance(site.node, ast.Compare | ast.BoolOp)
    return is_truth and isinstance(site.parent, ast.Return | ast.Assign) and site.role == "value"


CONDITION_RULES = (clause_added, filter_added, compared, default_of_none)
