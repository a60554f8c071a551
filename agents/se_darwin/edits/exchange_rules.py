"""Edits that exchange one way of doing something for another that people confuse with it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from agents.se_darwin.edits.edit import Block, Proposal, Site, parse_expression, statement_in

_EXCEPTIONS = ("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError")
_BROAD = ("ZeroDivisionError", "Exception")
_MUTATORS = (
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "rotate"),
    *("add", "discard", "update", "setdefault", "popitem", "appendleft", "popleft"),
    *("write", "put", "send", "close"),
)


def lookup(site: Site) -> Iterator[Proposal]:
    """``x[k]`` to ``x.get(k)`` or ``x.get(k, 0)``, and back."""
    node = site.node
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        if isinstance(node.slice, ast.Slice | ast.Tuple | ast.UnaryOp | ast.BinOp):
            return
        if isinstance(node.slice, ast.Constant) and not isinstance(node.slice.value, str):
            return
        if ast.unparse(node.value) in (*site.scope.lists, *site.scope.texts):
            return
        for default in ("", "0", "[]"):
            yield Proposal(
                kind="lookup",
                old="[]",
                new=f"get {default}".strip(),
                assign=site.replace(lambda default=default: _get(node, default)),  # type: ignore[misc]
            )
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func
        if owner.attr in ("get", "pop", "setdefault") and node.args:
            yield Proposal(
                kind="lookup",
                old=owner.attr,
                new="[]",
                assign=site.replace(lambda: ast.Subscript(owner.value, node.args[0], ast.Load())),
            )


def _get(node: ast.Subscript, default: str) -> ast.Call:
    arguments = [node.slice, *([parse_expression(default)] if default else [])]
    return ast.Call(ast.Attribute(node.value, "get", ast.Load()), arguments, [])


def in_place(site: Site) -> Iterator[Proposal]:
    """``x.sort()`` to ``x = sorted(x)`` and back; ``x.strip()`` to ``x = x.strip()``."""
    node = site.node
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _kept_results(site, node.value)
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.BitOr):
        if isinstance(node.target, ast.Name) and not _is_number(node.value):
            target = node.target
            yield _in_place(
                site,
                "+=",
                "= x + y",
                lambda: ast.Assign(
                    [target],
                    ast.BinOp(ast.Name(target.id, ast.Load()), node.op, node.value),
                ),
            )
    elif isinstance(node, ast.Call) and not isinstance(site.parent, ast.Expr):
        owner = node.func
        if isinstance(owner, ast.Attribute) and owner.attr in ("sort", "reverse"):
            made = "sorted" if owner.attr == "sort" else "reversed"
            yield _in_place(site, owner.attr, made, lambda: _applied(owner.value, node))


def _kept_results(site: Site, call: ast.Call) -> Iterator[Proposal]:
    called = call.func
    if isinstance(called, ast.Name) and called.id == "sorted" and call.args:
        owner = call.args[0]
        yield _in_place(
            site,
            "sorted",
            "sort",
            lambda: ast.Expr(ast.Call(ast.Attribute(owner, "sort", ast.Load()), [], call.keywords)),
        )
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return
    name = called.value.id
    if called.attr in ("sort", "reverse"):
        yield _in_place(
            site,
            called.attr,
            f"x = {called.attr} of x",
            lambda: _assigned(name, _applied(called.value, call)),
        )
    elif called.attr in ("append", "extend") and len(call.args) == 1:
        yield _in_place(
            site, called.attr, "x = x + y", lambda: _assigned(name, _longer(called, call))
        )
    elif called.attr not in _MUTATORS:
        yield _in_place(site, called.attr, "x = x.f()", lambda: _assigned(name, call))


def _applied(owner: ast.expr, call: ast.Call) -> ast.expr:
    """Return ``sorted(x)`` or ``x[::-1]`` for the calls ``x.sort()`` and ``x.reverse()``."""
    if call.func.attr == "sort":  # type: ignore[attr-defined]
        return ast.Call(ast.Name("sorted", ast.Load()), [owner], call.keywords)
    backwards = parse_expression("x[::-1]")
    backwards.value = owner  # type: ignore[attr-defined]
    return backwards


def _longer(called: ast.Attribute, call: ast.Call) -> ast.expr:
    added = call.args[0]
    if called.attr == "append":
        added = ast.List([added], ast.Load())
    return ast.BinOp(called.value, ast.Add(), added)


def _assigned(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _in_place(site: Site, old: str, new: str, build: Callable[[], ast.AST]) -> Proposal:
    return Proposal(kind="in_place", old=old, new=new, assign=site.replace(build))


def found_value(site: Site) -> Iterator[Proposal]:
    """``return f(x)`` in a loop to ``found = f(x); if found is not None: return found``."""
    node = site.node
    if not isinstance(node, ast.Return) or not site.in_loop:
        return
    if not isinstance(node.value, ast.Call | ast.Subscript | ast.BoolOp | ast.Compare):
        return
    value, name = node.value, "found"
    while name in site.scope.names:
        name += "_"
    for test in (f"{name} is not None", name):
        yield Proposal(
            kind="return_kind",
            old="Return",
            new=f"if {test}",
            assign=site.replace(lambda test=test: _tested_return(name, value, test)),  # type: ignore[misc]
        )
    for truth in (True, False):
        yield Proposal(
            kind="return_kind",
            old="Return",
            new=f"if {truth}",
            assign=site.replace(lambda truth=truth: _returned_if(value, truth=truth)),  # type: ignore[misc]
        )


def _tested_return(name: str, value: ast.expr, test: str) -> Block:
    body = ast.parse(f"{name} = 0\nif {test}:\n    return {name}").body
    body[0].value = value  # type: ignore[attr-defined]
    return Block(body)


def _returned_if(value: ast.expr, *, truth: bool) -> ast.If:
    test = value if truth else ast.UnaryOp(ast.Not(), value)
    return ast.If(test, [ast.Return(ast.Constant(truth))], [])


def exception(site: Site) -> Iterator[Proposal]:
    """Another exception class in ``raise`` or ``except``, or one more; another end of a handler."""
    node = site.node
    known = dict.fromkeys((*site.scope.module.exception_classes[:3], *_EXCEPTIONS))
    is_raised = isinstance(site.parent, ast.Raise) and site.role == "exc"
    if is_raised and isinstance(node, ast.Name | ast.Call):
        slot = node.func if isinstance(node, ast.Call) else node
        if isinstance(slot, ast.Name):
            for name in known:
                if name != slot.id:
                    yield Proposal(
                        kind="exception",
                        old=slot.id,
                        new=name,
                        assign=lambda name=name: [((slot, "id", None), name)],  # type: ignore[misc]
                    )
    elif isinstance(node, ast.ExceptHandler):
        yield from _handled(node, (*known, *_BROAD))
    elif isinstance(site.parent, ast.ExceptHandler) and site.is_statement and site.is_last:
        yield from _handler_ends(site)


def _handled(node: ast.ExceptHandler, known: tuple[str, ...]) -> Iterator[Proposal]:
    class_text = ast.unparse(node.type) if node.type is not None else ""
    for name in known:
        if name in class_text:
            continue
        forms = [name]
        if class_text and isinstance(node.type, ast.Tuple):
            forms.append(f"({class_text[1:-1]}, {name})")
        elif class_text not in ("", "Exception") and name != "Exception":
            forms.append(f"({class_text}, {name})")
        for form in forms:
            yield Proposal(
                kind="exception",
                old=class_text[:40],
                new=form,
                assign=lambda form=form: [((node, "type", None), parse_expression(form))],  # type: ignore[misc]
            )


def _handler_ends(site: Site) -> Iterator[Proposal]:
    """Replace the ``pass`` or exit at the end of a handler."""
    if not isinstance(site.node, ast.Pass | ast.Return | ast.Continue | ast.Break | ast.Raise):
        return
    texts = ["raise", "pass", *(("continue", "break") if site.in_loop else ())]
    values = (*site.scope.returned[:3], "None", "False", "True")
    texts += [f"return {value}" for value in dict.fromkeys(values)]
    node_text = ast.unparse(site.node)
    for text in texts:
        if text != node_text:
            yield Proposal(
                kind="exception",
                old=type(site.node).__name__,
                new=text,
                assign=site.replace(lambda text=text: ast.parse(text).body[0]),  # type: ignore[misc]
            )


def attempted(site: Site) -> Iterator[Proposal]:
    """``s`` to ``try: s`` with a handler of an exception that the statement may raise."""
    node = site.node
    if not site.is_statement or not isinstance(
        node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr
    ):
        return
    if any(isinstance(ancestor, ast.Try) for ancestor in site.ancestors[:1]):
        return
    values = dict.fromkeys((*site.scope.returned[:2], "None", "False", "0"))
    node_text = ast.unparse(node)
    ends = ["continue"] if site.in_loop else []
    ends += [f"return {value}" for value in values if f"return {value}" != node_text]
    ends += [] if isinstance(node, ast.Return) else ["pass"]
    for name in list(_possible_exceptions(node))[:2]:
        for end in ends[:4]:
            yield Proposal(
                kind="exception",
                old="try",
                new=f"except {name} {end}",
                assign=lambda name=name, end=end: [  # type: ignore[misc]
                    (site.slot, _try(statement_in(site.slot), name, end))
                ],
            )


def _possible_exceptions(node: ast.AST) -> dict[str, None]:
    """Return the classes of the exceptions that the operations in a statement usually raise."""
    exceptions: dict[str, None] = {}
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load):
            if not isinstance(part.slice, ast.Slice):
                is_key = isinstance(part.slice, ast.Constant) and isinstance(part.slice.value, str)
                exceptions["KeyError" if is_key else "(KeyError, IndexError)"] = None
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div | ast.FloorDiv | ast.Mod):
            if not isinstance(part.right, ast.Constant):
                exceptions["ZeroDivisionError"] = None
        elif isinstance(part, ast.Call):
            called = getattr(part.func, "attr", getattr(part.func, "id", ""))
            exceptions.update(dict.fromkeys(_RAISED_BY.get(called, ())))
    return exceptions


_RAISED_BY = {
    "int": ("ValueError", "TypeError"),
    "float": ("ValueError", "TypeError"),
    "index": ("ValueError",),
    "remove": ("ValueError",),
    "next": ("StopIteration",),
    "len": ("TypeError",),
    "pop": ("IndexError", "KeyError"),
    "decode": ("UnicodeDecodeError",),
}


def _try(statement: ast.stmt, name: str, end: str) -> ast.Try:
    made = ast.parse(f"try:\n    pass\nexcept {name}:\n    pass").body[0]
    if not isinstance(made, ast.Try):
        raise TypeError(f"expected a try statement, got {made!r}")
    made.body = [statement]
    made.handlers[0].body = [_parsed(end)]
    return made


def _parsed(statement: str) -> ast.stmt:
    """Return a statement that need not be allowed outside a loop or function."""
    return ast.parse(statement).body[0]


EXCHANGE_RULES = (lookup, in_place, found_value, exception, attempted)
