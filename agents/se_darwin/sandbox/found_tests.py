"""Which functions of a test module are tests, and which of them a keyword selects."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard


class PytestSuiteError(ValueError):
    """The caller's tests cannot be run; the message says why and what to do.

    Args:
        message: The message.
        missing_modules: Modules that they asked for and the sandbox does not have.
    """

    def __init__(self, message: str, missing_modules: Collection[str] = ()) -> None:
        super().__init__(message)
        self.missing_modules = tuple(missing_modules)


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def find_tests(
    tree: ast.Module, helpers: Iterable[ast.Module] = ()
) -> dict[str, tuple[FunctionNode, list[ast.stmt]]]:
    """Tests of the module by name, in order, each with what its class has besides tests.

    Args:
        tree: The test module.
        helpers: Other modules that may define classes from which its classes inherit tests.

    Raises:
        PytestSuiteError: There are none.
    """
    known = [node for each in (*helpers, tree) for node in each.body]
    classes = {node.name: node for node in known if isinstance(node, ast.ClassDef)}
    found = {
        name: (node, set_up) for name, node, set_up in _tests_below(tree.body, "", [], classes)
    }
    if not found:
        raise PytestSuiteError(
            "the tests contain no function `def test_...():`; write one with plain asserts"
        )
    return found


def selector(keyword: str) -> Callable[[str], bool]:
    """Whether a name matches *keyword*: parts of names with ``and``, ``or``, ``not`` and ``()``.

    Raises:
        PytestSuiteError: It is something else.
    """
    allowed = (
        ast.Expression,
        ast.BoolOp,
        ast.And,
        ast.Or,
        ast.UnaryOp,
        ast.Not,
        ast.Name,
        ast.Load,
    )
    try:
        tree = ast.parse(keyword or "True", mode="eval")
        wrong = keyword and not all(isinstance(node, allowed) for node in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        wrong = True
    if wrong:
        raise PytestSuiteError(
            f"{keyword!r} does not select tests: write parts of names with and, or, not and ()"
        )

    def matches(node: ast.expr, name: str) -> bool:
        if isinstance(node, ast.BoolOp):
            join = all if isinstance(node.op, ast.And) else any
            return join(matches(each, name) for each in node.values)
        if isinstance(node, ast.UnaryOp):
            return not matches(node.operand, name)
        return not isinstance(node, ast.Name) or node.id.lower() in name.lower()

    return lambda name: matches(tree.body, name)


def is_automatic(node: ast.stmt) -> bool:
    """Whether *node* runs before every test of its file."""
    if not isinstance(node, ast.FunctionDef):
        return False
    hooks = ("setup_module", "setUpModule", "setup_function")
    return node.name in hooks or any("autouse" in ast.unparse(each) for each in node.decorator_list)


def is_assert(node: ast.stmt) -> bool:
    """Whether *node* is an assert, or calls one of `unittest.TestCase`."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return isinstance(node, ast.Assert)
    called = node.value.func
    return (
        isinstance(called, ast.Attribute)
        and isinstance(called.value, ast.Name)
        and called.value.id == "self"
        and called.attr.startswith("assert")
    )


def _tests_below(
    body: list[ast.stmt],
    prefix: str,
    set_up: list[ast.stmt],
    classes: Mapping[str, ast.ClassDef],
) -> Iterator[tuple[str, FunctionNode, list[ast.stmt]]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and _is_test_class(lineage := _lineage(node, classes)):
            members: dict[str, ast.stmt] = {}  # a class replaces what its bases define
            own: list[ast.stmt] = []
            for each in reversed(lineage):
                members |= {test.name: test for test in each.body if _is_test(test)}
                own += [other for other in each.body if not _is_test(other)]
            inner = [each for each in node.body if isinstance(each, ast.ClassDef)]
            found = [*members.values(), *inner]
            yield from _tests_below(found, f"{prefix}{node.name}.", [*set_up, *own], classes)
        elif _is_test(node):
            yield f"{prefix}{node.name}", node, set_up


def _lineage(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class *node*, and those of *classes* from which it inherits, each after its heirs."""
    found, pending = list[ast.ClassDef](), [node]
    while pending:
        each = pending.pop(0)
        if each not in found:
            found.append(each)
            names = (_last_name(base) for base in each.bases)
            pending += [classes[name] for name in names if name in classes]
    return found


def _is_test_class(lineage: Sequence[ast.ClassDef]) -> bool:
    bases = [_last_name(base) for each in lineage for base in each.bases]
    return lineage[0].name.startswith("Test") or any(base.endswith("TestCase") for base in bases)


def _last_name(base: ast.expr) -> str:
    return ast.unparse(base).rpartition(".")[2]


def _is_test(node: ast.stmt) -> TypeGuard[FunctionNode]:
    if not isinstance(node, FunctionNode):
        return False
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    is_fixture = any(ast.unparse(each).rpartition(".")[2] == "fixture" for each in called)
    return node.name.startswith("test") and not is_fixture
