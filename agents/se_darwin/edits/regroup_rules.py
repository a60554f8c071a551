"""Edits that move a call, an operator or a pair of parentheses within an expression."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from agents.se_darwin.edits.edit import Proposal, Site, parse_expression
from agents.se_darwin.edits.scope import is_value

_BOTH_CALLS = ("int", "len", "abs", "str", "sorted", "set")
_OTHER = {"left": "right", "right": "left"}
_ASSOCIATIVE = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)


def regrouped(site: Site) -> Iterator[Proposal]:
    """``a * b + c`` to ``a * (b + c)`` and back; the same with ``and``, ``or`` and ``if``."""
    node = site.node
    if isinstance(node, ast.BinOp):
        yield from _regrouped_chain(site, node)
        for side in ("left", "right"):
            if isinstance(getattr(node, side), ast.IfExp):
                yield _regroup(site, f"if in {side}", _choice_outside(node, side))
    elif isinstance(node, ast.BoolOp):
        yield from _regrouped_clauses(site, node)
    elif isinstance(node, ast.IfExp):
        for part in ("body", "orelse"):
            inner = getattr(node, part)
            if isinstance(inner, ast.BinOp):
                yield _regroup(site, f"if on {part}", _choice_inside(node, inner, part))


def _regrouped_chain(site: Site, node: ast.BinOp) -> Iterator[Proposal]:
    for side in ("left", "right"):
        inner = getattr(node, side)
        if not isinstance(inner, ast.BinOp):
            continue
        if type(inner.op) is type(node.op) and isinstance(node.op, _ASSOCIATIVE):
            continue
        yield _regroup(site, f"from {side}", _turned(node, inner, side))


def _turned(node: ast.BinOp, inner: ast.BinOp, side: str) -> Callable[[], ast.AST]:
    def build() -> ast.AST:
        if side == "left":  # (a . b) - c to a . (b - c)
            return ast.BinOp(inner.left, inner.op, ast.BinOp(inner.right, node.op, node.right))
        return ast.BinOp(ast.BinOp(node.left, node.op, inner.left), inner.op, inner.right)

    return build


def _choice_outside(node: ast.BinOp, side: str) -> Callable[[], ast.AST]:
    def build() -> ast.AST:
        choice = getattr(node, side)
        if side == "left":  # (a if c else b) + d to a if c else b + d
            return ast.IfExp(
                choice.test, choice.body, ast.BinOp(choice.orelse, node.op, node.right)
            )
        return ast.IfExp(choice.test, ast.BinOp(node.left, node.op, choice.body), choice.orelse)

    return build


def _choice_inside(node: ast.IfExp, inner: ast.BinOp, part: str) -> Callable[[], ast.AST]:
    def build() -> ast.AST:
        if part == "body":  # a + b if c else d to a + (b if c else d)
            return ast.BinOp(inner.left, inner.op, ast.IfExp(node.test, inner.right, node.orelse))
        return ast.BinOp(ast.IfExp(node.test, node.body, inner.left), inner.op, inner.right)

    return build


def _regrouped_clauses(site: Site, node: ast.BoolOp) -> Iterator[Proposal]:
    """``a or b and c`` to ``(a or b) and c`` and back."""
    first, last = node.values[0], node.values[-1]
    if isinstance(last, ast.BoolOp):
        yield _regroup(
            site,
            "clauses from last",
            lambda: ast.BoolOp(
                last.op,
                [ast.BoolOp(node.op, [*node.values[:-1], last.values[0]]), *last.values[1:]],
            ),
        )
    if isinstance(first, ast.BoolOp):
        yield _regroup(
            site,
            "clauses from first",
            lambda: ast.BoolOp(
                first.op,
                [*first.values[:-1], ast.BoolOp(node.op, [first.values[-1], *node.values[1:]])],
            ),
        )


def _regroup(site: Site, new: str, build: Callable[[], ast.AST]) -> Proposal:
    old_kind = type(getattr(site.node, "op", site.node)).__name__
    return Proposal(kind="regrouped", old=old_kind, new=new, assign=site.replace(build))


def call_moved(site: Site) -> Iterator[Proposal]:
    """``f(a * b)`` to ``f(a) * b`` and back, also for methods, ``not`` and a sign."""
    node = site.node
    if isinstance(node, ast.Call | ast.UnaryOp) and is_value(node):
        inner = _wrapped(node)
        if isinstance(inner, ast.BinOp):
            for side in ("left", "right"):
                yield _moved(site, f"to {side}", _inwards(node, inner, side))
        elif isinstance(inner, ast.BoolOp) and isinstance(node, ast.UnaryOp):
            yield _moved(site, "to first", _to_first_clause(node, inner))
    elif isinstance(node, ast.BinOp):
        for side in ("left", "right"):
            part, opposite = getattr(node, side), getattr(node, _OTHER[side])
            is_count = isinstance(opposite, ast.Constant) and _is_len(
                part
            )  # len(x - 1) makes no sense
            if _wrapped(part) is not None and not is_count:
                yield _moved(site, f"from {side}", _outwards(node, part, side))
    elif isinstance(node, ast.BoolOp):
        first = node.values[0]
        if isinstance(first, ast.UnaryOp) and isinstance(first.op, ast.Not):
            yield _moved(
                site,
                "from first",
                lambda: ast.UnaryOp(
                    first.op, ast.BoolOp(node.op, [first.operand, *node.values[1:]])
                ),
            )


def _is_len(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"


def _wrapped(node: ast.AST) -> ast.expr | None:
    """Return the expression that a call or a sign is applied to."""
    if isinstance(node, ast.UnaryOp):
        return None if isinstance(node.operand, ast.Constant) else node.operand
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name) and node.args and not isinstance(node.args[0], ast.Starred):
        return node.args[0]
    if isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name):
        return node.func.value
    if isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        return node.args[0] if isinstance(node.args[0], ast.BinOp) else None
    return None


def _with_wrapped(node: ast.AST, inner: ast.expr) -> ast.expr:
    """Return *node* with *inner* in the place of what it is applied to."""
    if isinstance(node, ast.UnaryOp):
        return ast.UnaryOp(node.op, inner)
    if not isinstance(node, ast.Call):
        raise TypeError(f"{ast.dump(node)} is neither a call nor a sign")
    if isinstance(node.func, ast.Attribute) and _wrapped(node) is node.func.value:
        return ast.Call(ast.Attribute(inner, node.func.attr, ast.Load()), node.args, node.keywords)
    return ast.Call(node.func, [inner, *node.args[1:]], node.keywords)


def operand_moved_out(site: Site) -> Iterator[Proposal]:
    """``f(g(h, a * b))`` to ``f(g(h, a)) * b``: the last operand to after all calls around it."""
    node = site.node
    if not isinstance(node, ast.Call) or isinstance(site.parent, ast.Expr):
        return
    inner = node.args[-1] if node.args else None
    while isinstance(inner, ast.Call) and inner.args:
        inner = inner.args[-1]
    if not isinstance(inner, ast.BinOp) or _wrapped(node) is inner:
        return
    form = _Substitution({_HOLE: inner.left})
    text = ast.unparse(node).replace(ast.unparse(inner), _HOLE, 1)

    def build() -> ast.AST:
        call: ast.expr = form.visit(parse_expression(text))
        return ast.BinOp(call, inner.op, inner.right)

    if text.count(_HOLE) == 1:
        yield _moved(site, "to after the calls", build)


def _inwards(node: ast.Call | ast.UnaryOp, inner: ast.BinOp, side: str) -> Callable[[], ast.AST]:
    def build() -> ast.AST:
        if side == "left":
            return ast.BinOp(_with_wrapped(node, inner.left), inner.op, inner.right)
        return ast.BinOp(inner.left, inner.op, _with_wrapped(node, inner.right))

    return build


def _outwards(node: ast.BinOp, part: ast.expr, side: str) -> Callable[[], ast.AST]:
    def build() -> ast.AST:
        inner = _wrapped(part)
        if inner is None:  # another edit removed the argument
            return ast.BinOp(node.left, node.op, node.right)
        if side == "left":
            return _with_wrapped(part, ast.BinOp(inner, node.op, node.right))
        return _with_wrapped(part, ast.BinOp(node.left, node.op, inner))

    return build


def _to_first_clause(node: ast.UnaryOp, inner: ast.BoolOp) -> Callable[[], ast.AST]:
    return lambda: ast.BoolOp(inner.op, [ast.UnaryOp(node.op, inner.values[0]), *inner.values[1:]])


def _moved(site: Site, new: str, build: Callable[[], ast.AST]) -> Proposal:
    node = site.node
    func = node.func if isinstance(node, ast.Call) else node
    name = getattr(func, "id", getattr(func, "attr", type(getattr(node, "op", node)).__name__))
    return Proposal(kind="call_moved", old=name, new=new, assign=site.replace(build))


def both_sides(site: Site) -> Iterator[Proposal]:
    """``a == b`` to ``f(a) == f(b)``."""
    node = site.node
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
        return
    if any(isinstance(operand, ast.Constant | ast.UnaryOp | ast.List) for operand in (left, right)):
        return
    forms = [f"{name}(x)" for name in _BOTH_CALLS] + ["x.lower()"]
    is_ordering = not isinstance(node.ops[0], ast.Eq | ast.NotEq)
    if is_ordering:
        forms = [form for form in forms if form not in ("sorted(x)", "set(x)")]
    for form in forms:
        yield Proposal(
            kind="call_added",
            old="nothing",
            new=f"both {form}",
            assign=site.replace(
                lambda form=form: ast.Compare(  # type: ignore[misc]
                    _called(form, node.left), node.ops, [_called(form, node.comparators[0])]
                )
            ),
        )


def _called(form: str, argument: ast.expr) -> ast.expr:
    """Return the call *form*, in which ``x`` stands for *argument*."""
    call = parse_expression(form)
    if not isinstance(call, ast.Call):
        raise TypeError(f"{form!r} is not a call")
    if isinstance(call.func, ast.Attribute):
        call.func.value = argument
    else:
        call.args = [argument]
    return call


_DIVISIONS = ("-(-a // b)", "int(a / b)", "round(a / b)", "(a - 1) // b + 1")
_REMAINDERS = ("(a + 1) % b", "(a - 1) % b", "(a - 1) % b + 1", "-a % b", "abs(a) % b")
_QUOTIENTS = ("-(-a // b)", "round(a / b)", "int(a / b)", "math.ceil(a / b)")


def rounding(site: Site) -> Iterator[Proposal]:
    """Floor division to ceiling division and back; ``/`` to a rounded one; remainders shifted."""
    node = site.node
    inner = _quotient_of_ceiling(node)
    if inner is not None:
        yield Proposal(
            kind="rounding",
            old="ceiling",
            new="a // b",
            assign=site.replace(
                lambda: ast.BinOp(inner.left.operand, inner.op, inner.right)  # type: ignore[attr-defined]
            ),
        )
    elif isinstance(node, ast.BinOp):
        forms: tuple[str, ...] = ()
        if isinstance(node.op, ast.FloorDiv) and not isinstance(node.left, ast.UnaryOp):
            forms = _DIVISIONS
        elif isinstance(node.op, ast.Div):
            forms = _QUOTIENTS if "math" in site.scope.module.modules else _QUOTIENTS[:-1]
        elif isinstance(node.op, ast.Mod) and not isinstance(node.left, ast.Constant):
            forms = _REMAINDERS
        for form in forms:
            yield Proposal(
                kind="rounding",
                old=type(node.op).__name__,
                new=form,
                assign=site.replace(lambda form=form: _rounded(node, form)),  # type: ignore[misc]
            )


def _quotient_of_ceiling(node: ast.AST) -> ast.BinOp | None:
    """Return ``-a // b`` if *node* is ``-(-a // b)``."""
    if not isinstance(node, ast.UnaryOp) or not isinstance(node.op, ast.USub):
        return None
    inner = node.operand
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.FloorDiv):
        return inner if isinstance(inner.left, ast.UnaryOp) else None
    return None


def _rounded(node: ast.BinOp, form: str) -> ast.AST:
    """Return *form*, in which ``a`` and ``b`` stand for the operands of *node*."""
    parts = {"a": node.left, "b": node.right}
    made: ast.AST = _Substitution(parts).visit(parse_expression(form))
    return made


_HOLE = "__operand__"


class _Substitution(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, parts: dict[str, ast.expr]) -> None:
        self._parts = parts

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._parts.get(node.id, node)


REGROUP_RULES = (regrouped, call_moved, operand_moved_out, both_sides, rounding)
