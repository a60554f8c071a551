"""Faults in expressions: parts lost or added, wrong names, numbers, bounds and calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.faults.place import Change, Place, Rule

_NEAR: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq, ast.GtE, ast.LtE),
    ast.NotEq: (ast.Eq, ast.Gt, ast.Lt),
    ast.In: (ast.NotIn, ast.Eq),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Pow, ast.FloorDiv),
    ast.FloorDiv: (ast.Mod, ast.Div, ast.Mult),
    ast.Div: (ast.FloorDiv, ast.Mult),
    ast.Mod: (ast.FloorDiv, ast.Div),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr, ast.BitXor),
    ast.BitOr: (ast.BitAnd, ast.BitXor),
    ast.BitXor: (ast.BitOr, ast.BitAnd),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
_RELATED_CALLS = (
    ("min", "max", "sum", "len"),
    ("sorted", "reversed", "list", "set", "tuple"),
    ("int", "float", "str", "round", "abs"),
    ("any", "all"),
    ("ord", "chr", "str"),
    ("range", "enumerate"),
    ("append", "extend", "insert", "add"),
    ("strip", "lstrip", "rstrip"),
    ("find", "rfind", "index", "rindex"),
    ("startswith", "endswith"),
    ("lower", "upper", "title", "capitalize"),
    ("split", "rsplit", "splitlines", "partition"),
    ("keys", "values", "items"),
    ("isdigit", "isalpha", "isalnum", "isspace"),
    ("pop", "remove", "get"),
)


def _comparison_wrong(place: Place) -> Iterator[Change]:
    """A nearby comparison, or the two sides the wrong way round."""
    node = place.node
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for operator in _NEAR[type(node.ops[0])]:
            yield place.set_field("ops", [operator()])


def _operator_wrong(place: Place) -> Iterator[Change]:
    """Another arithmetic operator."""
    if isinstance(place.node, ast.BinOp | ast.AugAssign):
        for operator in _OPERATORS.get(type(place.node.op), ()):
            yield place.set_field("op", operator())


def _operands_swapped(place: Place) -> Iterator[Change]:
    """``a - b`` to ``b - a``, ``a < b`` to ``b < a``, two arguments of a call exchanged."""
    node = place.node
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mult):
        yield [*place.set_field("left", node.right), *place.set_field("right", node.left)]
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and not isinstance(node.ops[0], ast.Eq):
        exchanged = [*place.set_field("left", node.comparators[0])]
        yield [*exchanged, *place.set_field("comparators", [node.left])]
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        yield place.set_field("args", [node.args[1], node.args[0], *node.args[2:]])


def _clause_dropped(place: Place) -> Iterator[Change]:
    """Lose a clause of a condition, or confuse ``and`` with ``or``."""
    node = place.node
    if isinstance(node, ast.BoolOp):
        yield place.set_field("op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for lost in node.values:
            kept = [clause for clause in node.values if clause is not lost]
            yield place.replace(kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept))


def _condition_negated(place: Place) -> Iterator[Change]:
    """Lose ``not``, or insert it before a name or call."""
    node = place.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield place.replace(node.operand)
    elif place.role == "test" and isinstance(node, ast.Name | ast.Call | ast.BoolOp):
        yield place.replace(ast.UnaryOp(ast.Not(), node))


def _term_dropped(place: Place) -> Iterator[Change]:
    """``a + b`` to ``a`` or ``b``."""
    if isinstance(place.node, ast.BinOp):
        yield place.replace(place.node.left)
        yield place.replace(place.node.right)


def _call_unwrapped(place: Place) -> Iterator[Change]:
    """``f(x, y)`` to ``x`` or ``y``, ``x.f()`` to ``x``, ``x[i]`` to ``x``."""
    node = place.node
    if isinstance(node, ast.Call) and place.role != "func":
        for argument in node.args:
            if not isinstance(argument, ast.Starred | ast.GeneratorExp):
                yield place.replace(argument)
        if isinstance(node.func, ast.Attribute) and not isinstance(place.parent, ast.Expr):
            yield place.replace(node.func.value)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield place.replace(node.value)


def _call_wrong(place: Place) -> Iterator[Change]:
    """Call a related function, or another one that this function calls."""
    node = place.node
    if place.role != "func" or not isinstance(node, ast.Name | ast.Attribute):
        return
    field, name = ("id", node.id) if isinstance(node, ast.Name) else ("attr", node.attr)
    related = [
        related_name for family in _RELATED_CALLS if name in family for related_name in family
    ]
    if isinstance(node, ast.Name):
        related += place.calls
    for related_name in dict.fromkeys(related):
        if related_name != name:
            yield place.set_field(field, related_name)


def _argument_dropped(place: Place) -> Iterator[Change]:
    """Lose an argument: ``range(a, b)`` to ``range(b)``."""
    node = place.node
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        yield place.set_field("args", node.args[:-1])
        yield place.set_field("args", node.args[1:])
    if isinstance(node, ast.Call) and node.keywords:
        yield place.set_field("keywords", node.keywords[:-1])


def _offset_wrong(place: Place) -> Iterator[Change]:
    """Be one or two off in an index, a bound, a range or one side of a comparison."""
    node, parent = place.node, place.parent
    if isinstance(node, ast.BinOp) and ast.unparse(node).endswith((" + 1", " - 1", " + 2", " - 2")):
        yield place.replace(node.left)
    if not isinstance(node, ast.Name | ast.Call | ast.BinOp | ast.Attribute):
        return
    in_range = isinstance(parent, ast.Call) and ast.unparse(parent.func) == "range"
    compared = isinstance(parent, ast.Compare) and isinstance(
        parent.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE
    )
    if place.role in ("slice", "lower", "upper") or (in_range and place.role == "args") or compared:
        for operator, amount in ((ast.Add, 1), (ast.Sub, 1), (ast.Add, 2), (ast.Sub, 2)):
            yield place.replace(ast.BinOp(node, operator(), ast.Constant(amount)))


def _number_wrong(place: Place) -> Iterator[Change]:
    """Another number: one or two off, negative, a digit more or less; the other boolean."""
    node = place.node
    if not isinstance(node, ast.Constant) or isinstance(place.parent, ast.FormattedValue):
        return
    value = node.value
    if isinstance(value, bool):
        yield place.set_field("value", not value)
    elif isinstance(value, int):
        wrong = (value + 1, value - 1, value + 2, value - 2, 0, 1, 2 * value, 10 * value)
        for number in dict.fromkeys((*wrong, value // 10, -value)):
            if number != value:
                yield place.set_field("value", number)
    elif isinstance(value, float):
        for factor in (10.0, 0.1, 2.0, -1.0):
            yield place.set_field("value", value * factor)


def _string_wrong(place: Place) -> Iterator[Change]:
    """A string that lacks its first or last character, or has the other case."""
    node = place.node
    if not isinstance(node, ast.Constant) or isinstance(place.parent, ast.JoinedStr):
        return
    value = node.value
    if isinstance(value, str) and value:
        for text in dict.fromkeys((value[:-1], value[1:], value.swapcase(), value + " ")):
            if text != value:
                yield place.set_field("value", text)


def _bound_dropped(place: Place) -> Iterator[Change]:
    """``x[a:b]`` to ``x[a:]`` or ``x[:b]``; ``x[a:]`` to ``x[:a]``."""
    node = place.node
    if isinstance(node, ast.Slice):
        if node.lower is not None:
            yield place.set_field("lower", None)
        if node.upper is not None:
            yield place.set_field("upper", None)
        yield [*place.set_field("lower", node.upper), *place.set_field("upper", node.lower)]


def _variable_wrong(place: Place) -> Iterator[Change]:
    """Another variable of the function, which is used about as often."""
    node = place.node
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in place.names:
        at = place.names.index(node.id)
        for name in (*place.names[max(0, at - 2) : at], *place.names[at + 1 : at + 3]):
            yield place.set_field("id", name)


def _result_wrong(place: Place) -> Iterator[Change]:
    """Return, append or assign a variable instead of an expression of it."""
    node = place.node
    if place.role in ("value", "args") and isinstance(node, ast.BinOp | ast.Call | ast.Tuple):
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        for name in place.names:
            if name in used:
                yield place.replace(ast.Name(name, ast.Load()))


def _choice_flattened(place: Place) -> Iterator[Change]:
    """``a if c else b`` to ``a`` or ``b``, or the two exchanged."""
    node = place.node
    if isinstance(node, ast.IfExp):
        yield place.replace(node.body)
        yield place.replace(node.orelse)
        yield [*place.set_field("body", node.orelse), *place.set_field("orelse", node.body)]


EXPRESSION_FAULTS: dict[str, Rule] = {
    "comparison wrong": _comparison_wrong,
    "operator wrong": _operator_wrong,
    "operands swapped": _operands_swapped,
    "clause dropped": _clause_dropped,
    "condition negated": _condition_negated,
    "term dropped": _term_dropped,
    "call unwrapped": _call_unwrapped,
    "call wrong": _call_wrong,
    "argument dropped": _argument_dropped,
    "offset wrong": _offset_wrong,
    "number wrong": _number_wrong,
    "string wrong": _string_wrong,
    "bound dropped": _bound_dropped,
    "variable wrong": _variable_wrong,
    "result wrong": _result_wrong,
    "choice flattened": _choice_flattened,
}
