"""Edits that make an expression larger, with what the function has in scope."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from agents.se_darwin.edits.edit import Proposal, Site, parse_expression
from agents.se_darwin.edits.scope import is_value

_NUMBER_CALLS = ("abs", "int", "str")
_SIZED_CALLS = ("len", "sorted", "list", "set")
_ITERATED_CALLS = ("sorted", "reversed", "set", "list", "range", "enumerate")
_TEXT_METHODS = ("lower", "strip")
_SEQUENCE_CALLS = ("sorted", "list", "tuple", "str", "min", "max")
_RESULT_CALLS = ("list", "sorted", "tuple", "set", "str", "bool", "sum", "max", "min", "round")
_COPIES = ("dict", "list")
_KEYS = ("len", "abs", "str", "lambda item: item[0]", "lambda item: item[1]", "lambda item: -item")
_MAX_NAMES = 2
_MAX_FUNCTIONS = 3
_RANGE_LIMIT = 3


def call_added(site: Site) -> Iterator[Proposal]:
    """``x`` to ``f(x)``: a function used nearby, or a builtin that fits the place."""
    node = site.node
    if not isinstance(node, ast.expr) or not _is_operand(site):
        return
    if isinstance(node, ast.Constant | ast.Compare | ast.BoolOp):
        return
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    used = site.scope.functions[:_MAX_NAMES]
    if isinstance(site.parent, ast.BinOp | ast.Slice | ast.Subscript | ast.Compare):
        used = used[:1]
    builtins = _fitting_builtins(site, node)
    known = site.scope.module.functions[:_MAX_FUNCTIONS]
    for name in dict.fromkeys((*used, *builtins, *known)):
        if name != called:
            yield Proposal(
                kind="call_added",
                old="nothing",
                new=name,
                assign=site.replace(
                    lambda name=name: ast.Call(  # type: ignore[misc]
                        func=ast.Name(name, ast.Load()), args=[node], keywords=[]
                    )
                ),
            )


def _fitting_builtins(site: Site, node: ast.expr) -> tuple[str, ...]:
    """Return the builtins that fit the place and what is known of *node*."""
    builtins: tuple[str, ...]
    if site.role == "iter":
        return _ITERATED_CALLS
    if isinstance(node, ast.Name):
        numeric, sized = node.id in site.scope.numeric, node.id in site.scope.sized
        builtins = (_NUMBER_CALLS if numeric else ()) + (_SIZED_CALLS if sized else ())
    elif isinstance(node, ast.BinOp):
        builtins = _NUMBER_CALLS
    else:
        builtins = ("int", "str", "len", "sorted")
        builtins += _COPIES if isinstance(node, ast.Attribute) else ()
    if isinstance(site.parent, ast.Return):
        return builtins + _RESULT_CALLS
    if isinstance(site.parent, ast.BinOp | ast.Slice | ast.Subscript | ast.Compare):
        is_sum = isinstance(site.parent, ast.BinOp) and isinstance(site.parent.op, ast.Add)
        return (*(name for name in builtins if name in ("abs", "int", "len")), *("str",) * is_sum)
    return builtins


def indexes_looped(site: Site) -> Iterator[Proposal]:
    """``for i in x`` to ``for i in range(len(x))``, and back."""
    node = site.node
    if site.role != "iter" or not isinstance(node, ast.expr):
        return
    inner = _measured(node)
    if inner is not None:
        yield Proposal(
            kind="call_removed",
            old="range(len)",
            new="argument 0",
            assign=site.replace(lambda: inner),
        )
    elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        for form in ("range(len({}))", "range(1, len({}))"):
            yield Proposal(
                kind="call_added",
                old="nothing",
                new=form.format("x"),
                assign=site.replace_text(form.format(ast.unparse(node))),
            )


def _measured(node: ast.expr) -> ast.expr | None:
    """Return ``x`` if *node* is ``range(len(x))``."""
    for name in ("range", "len"):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return None
        if node.func.id != name or len(node.args) != 1:
            return None
        node = node.args[0]
    return node


def clamped(site: Site) -> Iterator[Proposal]:
    """``a - b`` to ``max(0, a - b)``."""
    node = site.node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and is_value(node):
        is_difference = isinstance(site.parent, ast.BinOp) and isinstance(
            site.parent.op, ast.Add | ast.Sub
        )
        if not is_difference:
            yield Proposal(
                kind="call_added",
                old="nothing",
                new="max(0, x)",
                assign=site.replace(
                    lambda: ast.Call(ast.Name("max", ast.Load()), [ast.Constant(0), node], [])
                ),
            )


def extreme_kept(site: Site) -> Iterator[Proposal]:
    """``x = e`` to ``x = max(x, e)`` or ``min(x, e)``; a result to ``min(e, limit)``."""
    node, parent = site.node, site.parent
    if not isinstance(node, ast.Name | ast.BinOp | ast.Call | ast.Subscript | ast.Attribute):
        return
    node_text = ast.unparse(node)
    bounds: list[str] = []
    if isinstance(parent, ast.Assign) and site.role == "value" and len(parent.targets) == 1:
        target = ast.unparse(parent.targets[0])
        is_set_before = not isinstance(parent.targets[0], ast.Name) or site.in_loop
        if (
            is_set_before
            and not isinstance(parent.targets[0], ast.Tuple)
            and target not in node_text
        ):
            bounds = [target]
    elif isinstance(parent, ast.Return) and not isinstance(node, ast.Attribute):
        numeric = [name for name in site.scope.parameters if name in site.scope.numeric]
        limits = (*numeric[:_MAX_NAMES], *site.scope.module.constants[:1])
        bounds = [name for name in limits if name not in node_text]
    for bound in bounds:
        for name in ("max", "min"):
            yield Proposal(
                kind="call_added",
                old="nothing",
                new=f"{name}({bound}, x)",
                assign=site.replace_text(f"{name}({bound}, {node_text})"),
            )


def share_of_percent(site: Site) -> Iterator[Proposal]:
    """``percent`` to ``percent / 100``."""
    node = site.node
    name = getattr(node, "id", getattr(node, "attr", ""))
    if isinstance(node, ast.Name | ast.Attribute) and is_value(node) and _PERCENT.search(name):
        yield Proposal(
            kind="term_added",
            old="nothing",
            new="Div 100",
            assign=site.replace_text(f"({ast.unparse(node)} / 100)"),
        )


def alternative_added(site: Site) -> Iterator[Proposal]:
    """``isinstance(x, int)`` to ``isinstance(x, (int, float))``, and other kin of a class."""
    node, parent = site.node, site.parent
    if not isinstance(parent, ast.Call) or getattr(parent.func, "id", "") != "isinstance":
        return
    if isinstance(node, ast.Name) and site.index == 1 and node.id in _KIN:
        text = f"({node.id}, {_KIN[node.id]})"
        yield Proposal(kind="argument_added", old="class", new=text, assign=site.replace_text(text))


_PERCENT = re.compile("percent|pct")
_KIN = {"int": "float", "float": "int", "list": "tuple", "tuple": "list", "set": "frozenset"}


def list_added(site: Site) -> Iterator[Proposal]:
    """``x`` to ``[x]``."""
    node = site.node
    if not isinstance(node, ast.Name | ast.BinOp | ast.Subscript | ast.Tuple) or not is_value(node):
        return
    parents = ast.Assign | ast.AugAssign | ast.Return | ast.Call
    if isinstance(site.parent, parents) and site.role in ("value", "args"):
        yield Proposal(
            kind="call_added",
            old="nothing",
            new="[]",
            assign=site.replace(lambda: ast.List(elts=[node], ctx=ast.Load())),
        )


def method_added(site: Site) -> Iterator[Proposal]:
    """``x`` to ``x.items()`` or ``x.copy()``; ``x.lower()`` if the function has strings."""
    node = site.node
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        return
    if not _is_operand(site) or (isinstance(node, ast.Name) and node.id not in site.scope.sized):
        return
    if site.role == "iter":
        names: tuple[str, ...] = ("items", "values")
    elif isinstance(site.parent, ast.Compare) and (alike := _method_beside(site.parent, node)):
        names = (alike,)
    else:
        names = _TEXT_METHODS if site.scope.strings else ()
        if isinstance(node, ast.Name) and not isinstance(site.parent, ast.Compare):
            names += ("copy",)
    for name in names:
        yield Proposal(
            kind="method_added",
            old="nothing",
            new=name,
            assign=site.replace(
                lambda name=name: ast.Call(  # type: ignore[misc]
                    func=ast.Attribute(node, name, ast.Load()), args=[], keywords=[]
                )
            ),
        )


def _method_beside(comparison: ast.Compare, node: ast.expr) -> str:
    """Method without arguments that another side of the comparison calls; empty if none does."""
    for side in (comparison.left, *comparison.comparators):
        called = side.func if isinstance(side, ast.Call) and side is not node else None
        if isinstance(called, ast.Attribute) and ast.unparse(side).endswith("()"):
            return called.attr
    return ""


def index_added(site: Site) -> Iterator[Proposal]:
    """``x`` to ``x[0]``, ``x[-1]``, ``x[i]``, ``x[1:]``, ``x[:-1]`` or ``x[::-1]``."""
    node = site.node
    if not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return
    if not _is_operand(site) or (isinstance(node, ast.Name) and node.id not in site.scope.sized):
        return
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Name) and called.id not in _SEQUENCE_CALLS:
        return
    indexes = ["0", "-1", *site.scope.indexes[:1]]
    if site.role == "iter" or isinstance(site.parent, ast.Return):
        indexes += ["1:", ":-1", "::-1"]
    for index in dict.fromkeys(indexes):
        yield Proposal(
            kind="index_added",
            old="nothing",
            new=index,
            assign=site.replace(lambda index=index: _indexed(node, index)),  # type: ignore[misc]
        )


def _indexed(node: ast.expr, index: str) -> ast.expr:
    subscript = ast.parse(f"x[{index}]", mode="eval").body
    subscript.value = node  # type: ignore[attr-defined]
    return subscript


def bound_added(site: Site) -> Iterator[Proposal]:
    """Add a bound or a step to a slice."""
    node = site.node
    if not isinstance(node, ast.Slice):
        return
    candidates = {
        "lower": ("1", *site.scope.numeric[:3]),
        "upper": ("-1", *site.scope.numeric[:3]),
        "step": ("-1", "2", *site.scope.numeric[:2]),
    }
    for side, texts in candidates.items():
        if getattr(node, side) is None:
            for text in texts:
                yield Proposal(
                    kind="bound_added",
                    old=side,
                    new=text,
                    assign=site.set_field(side, parse_expression(text)),
                )


def term_added(site: Site) -> Iterator[Proposal]:
    """``x`` to ``x + y`` or ``x - y``: a variable or a number of the function."""
    node = site.node
    if not _is_operand(site) or isinstance(site.parent, ast.BinOp) or site.role == "iter":
        return
    if not isinstance(node, ast.Name | ast.BinOp | ast.Call | ast.Subscript | ast.Attribute):
        return
    if isinstance(node, ast.Name) and node.id not in site.scope.numeric:
        names = site.scope.sized
    else:
        names = site.scope.numeric
    numbers = [repr(value) for value in site.scope.numbers if value not in (0, 1)]
    if isinstance(site.parent, ast.IfExp | ast.Tuple | ast.List | ast.keyword | ast.Slice):
        return
    if isinstance(site.parent, ast.Compare | ast.Call):
        texts = ["1"]  # `offset` adds it elsewhere
    else:
        texts = [*names[:_MAX_NAMES], *numbers[:1]]
    for text in texts:
        for operator in (ast.Add, ast.Sub):
            if operator is ast.Sub and text == ast.unparse(node):
                continue
            yield Proposal(
                kind="term_added",
                old="nothing",
                new=f"{operator.__name__} {text}",
                assign=site.replace(
                    lambda operator=operator, text=text: ast.BinOp(  # type: ignore[misc]
                        node, operator(), parse_expression(text)
                    )
                ),
            )


def argument_added(site: Site) -> Iterator[Proposal]:
    """Give a call one more argument: a variable, a small number, or a usual keyword."""
    node = site.node
    if not isinstance(node, ast.Call) or not is_value(node):
        return
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    positions: list[tuple[int, str]] = []
    end = len(node.args)
    if name == "range" and end < _RANGE_LIMIT:
        positions = [(0, text) for text in ("1", "2", *site.scope.numeric[:3])] if end == 1 else []
        positions += [(end, text) for text in ("-1", "2", *site.scope.numeric[:3])]
    elif name in ("round", "int", "enumerate", "sum", "next") and end == 1:
        positions = [(1, text) for text in ("0", "1", "2", "None", *site.scope.numeric[:2])]
    elif name in ("min", "max") or (not method and name not in _CLOSED_CALLS):
        positions = [(end, text) for text in (*site.scope.names[:_MAX_NAMES], "0", "1")]
    elif method in ("get", "pop", "split", "strip", "join", "append", "count", "rjust", "ljust"):
        texts = ("0", "1", "-1", "None", "[]", "' '", "','", *(("{}", "''") * (method == "get")))
        positions = [(end, text) for text in texts]
        positions += [(end, name) for name in site.scope.names[:3]]
    for index, text in positions:
        added = [*node.args[:index], parse_expression(text), *node.args[index:]]
        yield Proposal(
            kind="argument_added",
            old=f"args {index}",
            new=text,
            assign=site.set_field("args", added),
        )


_CLOSED_CALLS = (
    "len", "range", "abs", "str", "list", "set", "tuple", "dict", "sorted", "reversed", "any",
    "all", "float", "bool", "ord", "chr", "isinstance", "iter", "repr", "hash", "id", "type",
)  # fmt: skip


def keyword_added(site: Site) -> Iterator[Proposal]:
    """``reverse=True`` or a ``key`` for what sorts, a ``key`` or a ``default`` for what chooses."""
    node = site.node
    if not isinstance(node, ast.Call):
        return
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    keywords: list[tuple[str, str]] = []
    if name in ("sorted", "sort"):
        keywords = [("reverse", "True"), *(("key", key) for key in _KEYS)]
    elif name in ("min", "max") and len(node.args) == 1:
        keywords = [("key", key) for key in _KEYS[:-1]]
        keywords += [("default", value) for value in ("0", "None")]
    given = {keyword.arg for keyword in node.keywords}
    for argument, text in keywords:
        if argument not in given:
            yield Proposal(
                kind="argument_added",
                old="keywords",
                new="reverse" if argument == "reverse" else f"{argument} {text}",
                assign=lambda argument=argument, text=text: [  # type: ignore[misc]
                    (
                        (node, "keywords", None),
                        [*node.keywords, ast.keyword(argument, parse_expression(text))],
                    )
                ],
            )


def element_added(site: Site) -> Iterator[Proposal]:
    """``[a]`` to ``[a, b]``, and ``return a`` to ``return (a, b)``."""
    node = site.node
    if isinstance(node, ast.Tuple | ast.List) and isinstance(node.ctx, ast.Load):
        if not 0 < len(node.elts) <= 3 or isinstance(site.parent, ast.Subscript | ast.Compare):
            return
        element_texts = {ast.unparse(element) for element in node.elts}
        for name in [name for name in site.scope.names if name not in element_texts][:3]:
            yield Proposal(
                kind="argument_added",
                old="elts",
                new=name,
                assign=lambda name=name: [  # type: ignore[misc]
                    ((node, "elts", None), [*node.elts, parse_expression(name)])
                ],
            )
    elif isinstance(node, ast.Name) and isinstance(site.parent, ast.Return):
        for name in [name for name in site.scope.names if name != node.id][:2]:
            for text in (f"({node.id}, {name})", f"({name}, {node.id})"):
                yield Proposal(
                    kind="argument_added", old="value", new=text, assign=site.replace_text(text)
                )


_OPERAND_PLACES: tuple[tuple[tuple[type[ast.AST], ...], tuple[str, ...]], ...] = (
    ((ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Yield, ast.keyword), ("value",)),
    ((ast.For, ast.comprehension), ("iter",)),
    ((ast.Call,), ("args",)),
    ((ast.Subscript,), ("slice",)),
    ((ast.Slice,), ("lower", "upper", "step")),
    ((ast.BinOp, ast.Compare), ("left", "right", "comparators")),
    ((ast.IfExp,), ("body", "orelse")),
    ((ast.Tuple, ast.List, ast.ListComp, ast.GeneratorExp), ("elts", "elt")),
    ((ast.Dict,), ("values",)),
)


def _is_operand(site: Site) -> bool:
    """Whether the expression is a value that the function works with."""
    if not is_value(site.node) or isinstance(site.node, ast.Starred):
        return False
    return any(
        isinstance(site.parent, parents) and site.role in roles
        for parents, roles in _OPERAND_PLACES
    )


GROWTH_RULES = (
    call_added,
    indexes_looped,
    clamped,
    extreme_kept,
    share_of_percent,
    alternative_added,
    list_added,
    method_added,
    index_added,
    bound_added,
    term_added,
    keyword_added,
    element_added,
    argument_added,
)
