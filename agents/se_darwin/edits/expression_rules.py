"""Edits of expressions. Nearly every edit has an inverse among the edits."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from agents.se_darwin.edits.edit import Proposal, Site, swap

_ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_COMPARISON_GROUPS = (
    _ORDERINGS,
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Is, ast.Eq),
    (ast.IsNot, ast.NotEq),
    (ast.In, ast.Eq),
    (ast.NotIn, ast.NotEq),
)
_OPERATOR_PAIRS = (
    (ast.Add, ast.Sub),
    (ast.Add, ast.Mult),
    (ast.Mult, ast.Div),
    (ast.Mult, ast.FloorDiv),
    (ast.Mult, ast.Pow),
    (ast.Div, ast.FloorDiv),
    (ast.FloorDiv, ast.Mod),
    (ast.Add, ast.Div),
    (ast.Add, ast.FloorDiv),
    (ast.Sub, ast.Mult),
    (ast.Sub, ast.Div),
    (ast.Sub, ast.FloorDiv),
    (ast.Sub, ast.Mod),
    (ast.Mult, ast.Mod),
    (ast.Div, ast.Mod),
    (ast.BitXor, ast.Pow),
    (ast.LShift, ast.RShift),
    (ast.BitAnd, ast.BitOr),
    (ast.BitAnd, ast.BitXor),
    (ast.BitOr, ast.BitXor),
)
_MAX_FUNCTIONS = 4
_ROUND = 10  # from here on, a number may have a digit too many or too few
_COMMUTATIVE = (ast.Mult, ast.BitAnd, ast.BitXor)  # not BitOr: of two mappings the second wins
_METHOD_FAMILIES: tuple[tuple[str, ...], ...] = (
    ("strip", "lstrip", "rstrip"),
    ("lstrip", "removeprefix"),
    ("rstrip", "removesuffix"),
    ("find", "rfind", "index", "rindex"),
    ("startswith", "endswith"),
    ("lower", "upper"),
    ("title", "capitalize"),
    ("split", "rsplit"),
    ("partition", "rpartition"),
    ("ljust", "rjust", "center"),
    ("append", "extend"),
    ("append", "appendleft"),
    ("pop", "popleft"),
    ("keys", "values", "items"),
    ("isdigit", "isalpha", "isalnum"),
    ("isdigit", "isnumeric", "isdecimal"),
    ("isalpha", "isspace"),
    ("isupper", "islower"),
    ("add", "discard"),
    ("add", "update"),
    ("remove", "discard", "pop"),
    ("update", "setdefault"),
    ("union", "intersection", "difference", "symmetric_difference"),
    ("issubset", "issuperset"),
    ("match", "search", "fullmatch"),
    ("get", "setdefault", "pop"),
    ("encode", "decode"),
    ("floor", "ceil"),
    ("copy", "deepcopy"),
    ("start", "end"),
    ("weekday", "isoweekday"),
    ("read", "readline", "readlines"),
)
_FUNCTION_FAMILIES: tuple[tuple[str, ...], ...] = (
    ("min", "max"),
    ("any", "all"),
    ("sorted", "list", "reversed", "tuple"),
    ("list", "set"),
    ("int", "float", "str"),
    ("int", "round"),
    ("len", "sum"),
    ("ord", "chr"),
    ("floor", "ceil"),
    ("copy", "deepcopy"),
)


def comparison(site: Site) -> Iterator[Proposal]:
    """``<`` to the other orderings, ``is`` to ``is not``, ``in`` to ``not in``."""
    if not isinstance(site.node, ast.Compare):
        return
    for index, operator in enumerate(site.node.ops):
        for group in _COMPARISON_GROUPS:
            for replacement in group:
                if type(operator) in group and type(operator) is not replacement:
                    yield Proposal(
                        kind="comparison",
                        old=type(operator).__name__,
                        new=replacement.__name__ + (f"#{index}" if index else ""),
                        assign=site.set_field("ops", replacement(), index),
                    )


def arithmetic(site: Site) -> Iterator[Proposal]:
    """An arithmetic or bitwise operator to a related one, also in ``+=``."""
    if not isinstance(site.node, ast.BinOp | ast.AugAssign):
        return
    operator = type(site.node.op)
    for pair in _OPERATOR_PAIRS:
        if operator in pair:
            replacement = pair[1 - pair.index(operator)]
            yield Proposal(
                kind="arithmetic",
                old=operator.__name__,
                new=replacement.__name__,
                assign=site.set_field("op", replacement()),
            )


def operand_order(site: Site) -> Iterator[Proposal]:
    """``a - b`` to ``b - a``."""
    node = site.node
    if isinstance(node, ast.BinOp) and not isinstance(node.op, _COMMUTATIVE):
        name = type(node.op).__name__
        exchange = swap((node, "left", None), (node, "right", None))
        yield Proposal(kind="operand_order", old=name, new=f"{name} swapped", assign=exchange)


def boolean(site: Site) -> Iterator[Proposal]:
    """``and`` to ``or`` and back, ``&`` to ``and`` and back, ``|`` to ``or`` and back."""
    node = site.node
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        bitwise = ast.BitAnd if isinstance(node.op, ast.And) else ast.BitOr
        yield Proposal(
            kind="boolean",
            old=type(node.op).__name__,
            new=bitwise.__name__,
            assign=site.replace(lambda: ast.BinOp(node.values[0], bitwise(), node.values[1])),
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        logical = ast.And if isinstance(node.op, ast.BitAnd) else ast.Or
        yield Proposal(
            kind="boolean",
            old=type(node.op).__name__,
            new=logical.__name__,
            assign=site.replace(lambda: ast.BoolOp(logical(), [node.left, node.right])),
        )
    if isinstance(site.node, ast.BoolOp):
        replacement = ast.Or if isinstance(site.node.op, ast.And) else ast.And
        yield Proposal(
            kind="boolean",
            old=type(site.node.op).__name__,
            new=replacement.__name__,
            assign=site.set_field("op", replacement()),
        )


def negation(site: Site) -> Iterator[Proposal]:
    """Insert ``not`` before a condition, or remove it."""
    node = site.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        assign = site.replace(lambda: node.operand)
        yield Proposal(kind="negation", old="Not", new="nothing", assign=assign)
    elif isinstance(node, ast.expr) and not isinstance(node, ast.Compare | ast.Constant):
        is_condition = site.role in ("test", "ifs") or isinstance(site.parent, ast.BoolOp)
        if isinstance(site.parent, ast.Return):
            is_condition = isinstance(node, ast.Attribute | ast.Call)
        if is_condition:
            assign = site.replace(lambda: ast.UnaryOp(op=ast.Not(), operand=node))
            yield Proposal(kind="negation", old="nothing", new="Not", assign=assign)


def sign(site: Site) -> Iterator[Proposal]:
    """Remove a minus sign, or insert one before a variable."""
    node = site.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        assign = site.replace(lambda: node.operand)
        yield Proposal(kind="sign", old="USub", new="nothing", assign=assign)
    elif isinstance(node, ast.expr) and _is_signed(site):
        assign = site.replace(lambda: ast.UnaryOp(op=ast.USub(), operand=node))
        yield Proposal(kind="sign", old="nothing", new="USub", assign=assign)


def _is_signed(site: Site) -> bool:
    """Whether the expression is one before which people put a minus."""
    node, parent = site.node, site.parent
    if isinstance(node, ast.Name | ast.Subscript | ast.Attribute) and isinstance(
        node.ctx, ast.Load
    ):
        is_part = isinstance(parent, ast.Tuple) and isinstance(site.ancestors[1], ast.Lambda)
        if is_part or isinstance(parent, ast.Lambda | ast.IfExp):  # the order of a sort key
            return True
    return (
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and isinstance(parent, ast.BinOp | ast.Subscript | ast.Slice)
        and site.role != "value"
    )


def offset(site: Site) -> Iterator[Proposal]:
    """``e`` to ``e + 1`` or ``e - 1`` where off-by-one errors occur, and back."""
    node = site.node
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub)
        and isinstance(node.right, ast.Constant)
        and node.right.value == 1
    ):
        old = f"{type(node.op).__name__} 1"
        yield Proposal(
            kind="offset", old=old, new="nothing", assign=site.replace(lambda: node.left)
        )
    if not isinstance(node, ast.expr) or isinstance(node, ast.Constant | ast.Slice | ast.Tuple):
        return
    if _is_index_like(site):
        for operator in (ast.Add, ast.Sub):
            yield Proposal(
                kind="offset",
                old="nothing",
                new=f"{operator.__name__} 1",
                assign=site.replace(_adding(node, operator)),
            )


def _is_index_like(site: Site) -> bool:
    """Whether the expression is in a place that usually takes an index, a bound or a count."""
    if site.role in ("slice", "lower", "upper"):
        return True
    parent = site.parent
    if site.role == "args":
        return (
            isinstance(parent, ast.Call)
            and isinstance(parent.func, ast.Name)
            and parent.func.id == "range"
        )
    simple = isinstance(site.node, ast.Name | ast.BinOp | ast.Call)
    return simple and isinstance(parent, ast.Assign | ast.Return) and site.role == "value"


def _adding(node: ast.expr, operator: type[ast.operator]) -> Callable[[], ast.AST]:
    return lambda: ast.BinOp(
        left=node, op=operator(), right=ast.copy_location(ast.Constant(1), node)
    )


def constant(site: Site) -> Iterator[Proposal]:
    """A number to a nearby one, ``True`` to ``False`` and back."""
    node = site.node
    if not isinstance(node, ast.Constant) or isinstance(site.parent, ast.JoinedStr):
        return
    value = node.value
    others: list[int | float | bool] = []
    if isinstance(value, bool):
        others = [not value]
    elif isinstance(value, int):
        others = [value + 1, value - 1, 0, 1, 2, -value]
        if abs(value) >= _ROUND:
            others += [value * 10, value // 10]
    elif isinstance(value, float):
        others = [value * 2, value / 2, value + 1, value - 1, value * 10, value / 10]
    for replacement in dict.fromkeys(others):
        if replacement != value:
            yield Proposal(
                kind="constant",
                old=repr(value),
                new=repr(replacement),
                assign=site.set_field("value", replacement),
            )


def string(site: Site) -> Iterator[Proposal]:
    """A string to another string of the function, or to the empty string."""
    node = site.node
    if not isinstance(node, ast.Constant) or isinstance(site.parent, ast.JoinedStr):
        return
    if isinstance(node.value, str | bytes):
        others = (*site.scope.strings, type(node.value)(), *_similar(node.value), *_keys(site))
        for replacement in dict.fromkeys(others):
            if type(replacement) is type(node.value) and replacement != node.value:
                yield Proposal(
                    kind="string",
                    old=repr(node.value)[:20],
                    new=repr(replacement)[:20],
                    assign=site.set_field("value", replacement),
                )


def _keys(site: Site) -> Sequence[str]:
    """Names of variables, where a text is a key: what is read from ``row["net"]`` is named so."""
    value = getattr(site.node, "value", None)
    is_key = site.role in ("slice", "keys") or (site.role == "args" and site.index == 0)
    if not is_key or not isinstance(value, str) or not value.isidentifier():
        return ()
    return site.scope.names[:_MAX_FUNCTIONS]


def _similar(value: str | bytes) -> tuple[str | bytes, ...]:
    """Return texts that people write instead of *value*: in another case, with another blank."""
    if isinstance(value, bytes):
        return ()
    if len(value) <= 1:
        return (" ", ",", "\n", "-", "0", f"{value} ")
    return (value.lower(), value.upper(), value.capitalize(), value.strip(), value + " ")


def variable(site: Site) -> Iterator[Proposal]:
    """One variable of the function for another, where it is read."""
    node = site.node
    if (
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in site.scope.names
    ):
        for name in site.scope.names:
            if name != node.id:
                yield Proposal(
                    kind="variable", old=node.id, new=name, assign=site.set_field("id", name)
                )


def called_name(site: Site) -> Iterator[Proposal]:
    """``strip`` to ``rstrip``, ``min`` to ``max``: a method or function of the same family."""
    if site.role != "func":
        return
    node = site.node
    if isinstance(node, ast.Attribute):
        kind, name, families, slot = "method", node.attr, _METHOD_FAMILIES, "attr"
    elif isinstance(node, ast.Name):
        kind, name, families, slot = "function", node.id, _FUNCTION_FAMILIES, "id"
    else:
        return
    others = [member for family in families if name in family for member in family]
    if kind == "function" and name in site.scope.module.functions:
        others += site.scope.module.functions[:_MAX_FUNCTIONS]
    for replacement in dict.fromkeys(others):
        if replacement != name:
            yield Proposal(
                kind=kind, old=name, new=replacement, assign=site.set_field(slot, replacement)
            )


def element_order(site: Site) -> Iterator[Proposal]:
    """Exchange neighbouring arguments of a call, or elements of a short tuple."""
    node = site.node
    if isinstance(node, ast.Call):
        kind, role, count = "argument_order", "args", len(node.args)
    elif isinstance(node, ast.Tuple) and len(node.elts) <= 4:
        kind, role, count = "element_order", "elts", len(node.elts)
    elif isinstance(node, ast.Dict) and None in node.keys:
        yield from _items_exchanged(site, node)
        return
    else:
        return
    for index in range(count - 1):
        yield Proposal(
            kind=kind,
            old=f"{role} {index}",
            new=f"{role} {index + 1}",
            assign=swap((node, role, index), (node, role, index + 1)),
        )


def _items_exchanged(site: Site, node: ast.Dict) -> Iterator[Proposal]:
    """``{**a, **b}`` to ``{**b, **a}``: of equal keys the last one counts."""
    for index in range(len(node.keys) - 1):
        order = [*range(index), index + 1, index, *range(index + 2, len(node.keys))]
        yield Proposal(
            kind="element_order",
            old=f"items {index}",
            new=f"items {index + 1}",
            assign=site.replace(
                lambda order=order: ast.Dict(  # type: ignore[misc]
                    [node.keys[place] for place in order], [node.values[place] for place in order]
                )
            ),
        )


def slice_side(site: Site) -> Iterator[Proposal]:
    """``x[a:]`` to ``x[:a]`` and back; ``x[:a]`` to ``x[::a]``."""
    node = site.node
    if isinstance(node, ast.Slice) and node.step is None and node.upper is not None:
        moved = swap((node, "upper", None), (node, "step", None))
        yield Proposal(kind="slice", old="upper", new="step", assign=moved)
    if isinstance(node, ast.Slice) and (node.lower is None) != (node.upper is None):
        sides = ("lower", "upper") if node.upper is None else ("upper", "lower")
        exchange = swap((node, "lower", None), (node, "upper", None))
        yield Proposal(kind="slice", old=sides[0], new=sides[1], assign=exchange)


EXPRESSION_RULES = (
    comparison,
    arithmetic,
    operand_order,
    boolean,
    negation,
    sign,
    offset,
    constant,
    string,
    variable,
    called_name,
    element_order,
    slice_side,
)
