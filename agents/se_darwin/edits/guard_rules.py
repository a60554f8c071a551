"""Edits that make statements depend on a condition, and guards that return or raise."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agents.se_darwin.edits.edit import Proposal, Site, parse_expression, statement_in
from agents.se_darwin.edits.nodes import ForNode, FunctionNode

_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr)
_EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_MAX_PARAMETERS = 4
_MAX_RAISING_TESTS = 10
_GUARD_VALUES = ("None", "False", "True", "0", "[]")


def guard_added(site: Site) -> Iterator[Proposal]:
    """Begin the function with ``if not x: return y``."""
    if not site.is_first_of_function:
        return
    scope = site.scope
    values = tuple(dict.fromkeys((*scope.returned[:2], *scope.parameters[:1], *_GUARD_VALUES)))
    for place, name in enumerate(scope.parameters[:_MAX_PARAMETERS]):
        tests = [f"not {name}"] if name in scope.sized else [f"{name} is None"]
        if name in scope.numeric:
            tests += [f"{name} <= 0", f"{name} <= 1"]
        for test in tests if place < 2 else tests[:1]:
            for value in values if place < 2 else values[:4]:
                yield _guard(site, test, f"return {value}")
    for test in _parameter_conditions(site)[:2]:
        for value in values[:3]:
            yield _guard(site, test, f"return {value}")


def raise_added(site: Site) -> Iterator[Proposal]:
    """Begin the function with ``if x < 0: raise E``."""
    if not site.is_first_of_function:
        return
    exceptions = site.scope.module.exceptions[:2]
    for test in _raising_tests(site)[:_MAX_RAISING_TESTS]:
        usual: tuple[str, ...] = ("ValueError",)
        if test.startswith("not isinstance"):
            usual = ("TypeError",)
        elif test.startswith("not "):
            usual = ("ValueError", "IndexError")
        elif test.endswith("is None"):
            usual = ("ValueError", "TypeError")
        for exception in dict.fromkeys((*exceptions, *usual)):
            yield _guard(site, test, f"raise {exception}", kind="raise_added")


def end_raised(site: Site) -> Iterator[Proposal]:
    """``raise E`` at the end of the function, or instead of the ``return`` of a constant."""
    node, exceptions = site.node, site.scope.module.exceptions[:2]
    if not site.is_statement:
        return
    if isinstance(node, ast.Return) and (node.value is None or _is_default(node.value)):
        for exception in dict.fromkeys((*exceptions, "ValueError")):
            yield Proposal(
                kind="raise_added",
                old="Return",
                new=f"raise {exception}",
                assign=site.replace(lambda exception=exception: _raise(exception)),  # type: ignore[misc]
            )
    is_end = site.is_last and isinstance(site.parent, FunctionNode)
    if is_end and not isinstance(node, _EXITS):
        for exception in dict.fromkeys((*exceptions, "ValueError", "KeyError", "IndexError")):
            yield site.insertion("raise_added", after=[f"raise {exception}"])


def _raising_tests(site: Site) -> list[str]:
    """Conditions that usually refuse arguments, the likeliest first."""
    scope = site.scope
    parameters = scope.parameters[:_MAX_PARAMETERS]
    numeric = [name for name in parameters if name in scope.numeric]
    sized = [name for name in parameters if name in scope.sized]
    certain = [name for name in numeric if name not in sized]
    tests = [f"{name} < 0" for name in numeric[:3]]
    tests += [f"not {name}" for name in sized[:2]]
    tests += [f"{name} <= 0" for name in numeric[:2]]
    if len(certain) > 1:
        tests.append(f"min({', '.join(certain)}) < 0")
        tests += [f"{certain[0]} {operator} {certain[1]}" for operator in "<>"]
    if len(sized) > 1:
        tests.append(f"len({sized[0]}) != len({sized[1]})")
    tests += _parameter_conditions(site)[:3]
    tests += [f"not isinstance({name}, int)" for name in certain[:1]]
    tests += [f"not isinstance({name}, str)" for name in sized[:1] if name in scope.texts]
    tests += [f"{name} is None" for name in parameters[:1]]
    tests += [f"any((x < 0 for x in {name}))" for name in sized[:1] if name not in scope.texts]
    return list(dict.fromkeys(tests))


def _parameter_conditions(site: Site) -> list[str]:
    """Conditions of the function, and their opposites, that need nothing but its parameters."""
    local = set(site.scope.names) - set(site.scope.parameters) - {"self", "cls"}
    conditions = []
    for text in site.scope.conditions:
        names = {node.id for node in ast.walk(parse_expression(text)) if isinstance(node, ast.Name)}
        if not names & local and names & set(site.scope.parameters):
            conditions += [text, f"not ({text})"]
    return conditions


def _is_default(value: ast.expr) -> bool:
    """Whether *value* is a constant, as functions return it for what they cannot do."""
    if isinstance(value, ast.UnaryOp):
        return _is_default(value.operand)
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.List | ast.Tuple | ast.Dict) and not list(ast.iter_child_nodes(value))
    )


def _raise(exception: str) -> ast.Raise:
    return ast.Raise(exc=parse_expression(exception), cause=None)


def _guard(site: Site, test: str, leave: str, kind: str = "guard_added") -> Proposal:
    return site.insertion(kind, before=[f"if {test}:\n    {leave}"])


def middle_guard_added(site: Site) -> Iterator[Proposal]:
    """``if not x: return y`` before a later ``return`` or loop that uses the variable ``x``."""
    node = site.node
    if not site.is_statement or site.is_first_of_function:
        return
    if not isinstance(node, ast.Return | ForNode | ast.While):
        return
    scope = site.scope
    used = _names_read(_head(node))
    values = dict.fromkeys((*scope.returned[:2], "None", "[]", "0"))
    leaves = [f"return {value}" for value in values]
    leaves += [
        f"raise {name}" for name in dict.fromkeys((*scope.module.exceptions[:1], "ValueError"))
    ]
    node_text = ast.unparse(node)
    for name in [name for name in scope.assigned if name in used][:1]:
        test = f"not {name}" if name in scope.sized else f"{name} is None"
        for leave in leaves:
            if leave != node_text:
                kind = "raise_added" if leave.startswith("raise") else "guard_added"
                yield _guard(site, test, leave, kind)


def _head(node: ast.stmt) -> ast.AST:
    """Return the part of a statement that runs first."""
    if isinstance(node, ForNode):
        return node.iter
    return node.test if isinstance(node, ast.While | ast.If) else node


def _names_read(node: ast.AST) -> list[str]:
    names = (
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    )
    return list(dict.fromkeys(names))


def loop_guard_added(site: Site) -> Iterator[Proposal]:
    """Begin a loop with ``if c: continue`` or ``if c: break``."""
    if not site.is_statement or site.index or not isinstance(site.parent, _LOOPS):
        return
    if site.role == "body":
        for condition in (*site.scope.conditions[:4], *site.scope.names[:2]):
            for test in (condition, f"not ({condition})"):
                for leave in ("continue", "break"):
                    yield site.insertion("guard_added", before=[f"if {test}:\n    {leave}"])


def statement_guarded(site: Site) -> Iterator[Proposal]:
    """``s`` to ``if c: s``: a condition of the function, or a name that the statement uses."""
    node = site.node
    if not site.is_statement or not isinstance(node, _SIMPLE + _EXITS):
        return
    scope = site.scope
    if isinstance(node, ast.Return) and isinstance(site.parent, FunctionNode) and site.is_last:
        return
    tests = [
        test for condition in scope.conditions[:2] for test in (condition, f"not ({condition})")
    ]
    tests += _growth_test(node)
    used = [name for name in _names_read(node) if name in scope.names]
    tests += [text for name in used[:2] for text in (name, f"{name} is not None")][:3]
    for test in dict.fromkeys(tests):
        yield Proposal(
            kind="statement_guarded",
            old="nothing",
            new=f"if {test}",
            assign=lambda test=test: [  # type: ignore[misc]
                (site.slot, _guarded(test, statement_in(site.slot)))
            ],
        )


def _growth_test(node: ast.AST) -> list[str]:
    """``y not in x`` for ``x.append(y)``."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return []
    if call.func.attr not in ("append", "add", "remove", "appendleft") or len(call.args) != 1:
        return []
    operator = "in" if call.func.attr == "remove" else "not in"
    return [f"{ast.unparse(call.args[0])} {operator} {ast.unparse(call.func.value)}"]


def _guarded(test: str, statement: ast.stmt) -> ast.If:
    return ast.If(test=parse_expression(test), body=[statement], orelse=[])


GUARD_RULES = (
    guard_added,
    raise_added,
    end_raised,
    middle_guard_added,
    loop_guard_added,
    statement_guarded,
)
