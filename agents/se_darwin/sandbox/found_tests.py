"""Which functions of a test module are tests."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.sandbox.keyword_selection import assigned, mark_names


class PytestSuiteError(ValueError):
    """The caller's tests cannot be run; the message says why and what to do.

    Args:
        message: The message.
        missing_modules: Modules that they asked for and the sandbox does not have.
    """

    def __init__(self, message: str, missing_modules: Collection[str] = ()) -> None:
        super().__init__(message)
        self.missing_modules = tuple(missing_modules)


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTest:
    """A test of the module.

    Attributes:
        node: Its function.
        set_up: What its class has besides tests.
        names: Names of its function, classes and marks, which a keyword may match.
    """

    node: FunctionNode
    set_up: list[ast.stmt]
    names: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scope:
    """The module, or a class in it.

    Attributes:
        prefix: Dotted name of the class and a dot.
        set_up: What the class has besides tests.
        names: Names of classes and marks.
        variables: Variables of the modules.
    """

    prefix: str
    set_up: list[ast.stmt]
    names: frozenset[str]
    variables: Mapping[str, ast.expr]

    def inner(self, name: str, lineage: Sequence[ast.ClassDef]) -> _Scope:
        """Scope of the class *name*, which inherits from the others of its *lineage*."""
        set_up = [
            statement for node in lineage for statement in node.body if not _is_test(statement)
        ]
        marks = [mark for node in lineage for mark in (*node.decorator_list, *_pytestmark(node))]
        return _Scope(
            prefix=f"{self.prefix}{name}.",
            set_up=[*self.set_up, *set_up],
            names=self.names | {name, *mark_names(marks, self.variables)},
            variables=self.variables,
        )

    def test(self, node: FunctionNode) -> FoundTest:
        """The test *node* of this scope."""
        marks = mark_names(node.decorator_list, self.variables)
        names = self.names | {node.name, *marks}
        return FoundTest(node=node, set_up=self.set_up, names=names)


def find_tests(tree: ast.Module, helpers: Iterable[ast.Module] = ()) -> dict[str, FoundTest]:
    """Tests of the module by name, in order.

    Args:
        tree: The test module.
        helpers: Other modules that may define classes from which its classes inherit tests.

    Raises:
        PytestSuiteError: There are none.
    """
    known = [node for root in (*helpers, tree) for node in root.body]
    classes = {node.name: node for node in known if isinstance(node, ast.ClassDef)}
    variables = assigned(known)
    module = _Scope(
        prefix="",
        set_up=[],
        names=frozenset(mark_names(_pytestmark(tree), variables)),
        variables=variables,
    )
    tests = {
        f"{scope.prefix}{node.name}": scope.test(node)
        for scope, node in _tests_below(tree.body, module, classes)
    }
    if not tests:
        raise PytestSuiteError(
            "the tests contain no function `def test_...():`; write one with plain asserts"
        )
    return tests


def is_automatic(node: ast.stmt) -> bool:
    """Whether *node* runs before every test of its file."""
    if not isinstance(node, FunctionNode):
        return False
    hooks = ("setup_module", "setUpModule", "setup_function")
    return node.name in hooks or any(
        "autouse" in ast.unparse(decorator) for decorator in node.decorator_list
    )


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
    body: list[ast.stmt], scope: _Scope, classes: Mapping[str, ast.ClassDef]
) -> Iterator[tuple[_Scope, FunctionNode]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and _is_test_class(lineage := _lineage(node, classes)):
            members: dict[str, ast.stmt] = {}  # a class replaces what its bases define
            for ancestor in reversed(lineage):
                members |= {test.name: test for test in ancestor.body if _is_test(test)}
            inner = [statement for statement in node.body if isinstance(statement, ast.ClassDef)]
            statements = [*members.values(), *inner]
            yield from _tests_below(statements, scope.inner(node.name, lineage), classes)
        elif _is_test(node):
            yield scope, node


def _pytestmark(node: ast.Module | ast.ClassDef) -> list[ast.expr]:
    """Value of ``pytestmark`` in a module or class, if it is assigned."""
    marks = assigned(node.body).get("pytestmark")
    return [] if marks is None else [marks]


def _lineage(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class *node*, and those of *classes* from which it inherits, each after its heirs."""
    lineage, pending = list[ast.ClassDef](), [node]
    while pending:
        ancestor = pending.pop(0)
        if ancestor not in lineage:
            lineage.append(ancestor)
            names = (_last_name(base) for base in ancestor.bases)
            pending += [classes[name] for name in names if name in classes]
    return lineage


def _is_test_class(lineage: Sequence[ast.ClassDef]) -> bool:
    bases = [_last_name(base) for ancestor in lineage for base in ancestor.bases]
    return lineage[0].name.startswith("Test") or any(base.endswith("TestCase") for base in bases)


def _last_name(base: ast.expr) -> str:
    return ast.unparse(base).rpartition(".")[2]


def _is_test(node: ast.stmt) -> TypeGuard[FunctionNode]:
    if not isinstance(node, FunctionNode):
        return False
    called = (
        decorator.func if isinstance(decorator, ast.Call) else decorator
        for decorator in node.decorator_list
    )
    is_fixture = any(ast.unparse(function).rpartition(".")[2] == "fixture" for function in called)
    return node.name.startswith("test") and not is_fixture
