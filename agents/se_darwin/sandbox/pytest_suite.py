"""The caller's test module, prepared to run in the sandbox apart from the candidates."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from agents.se_darwin.fork_server.check import PASSED
from agents.se_darwin.fork_server.suite_runner import CHECK_NAME
from agents.se_darwin.sandbox.call_graph import may_call
from agents.se_darwin.sandbox.execution import TestCase

_CONTEXT_NAME = "__checking__"
_HERE = "__here__"  # the package of `from . import module`


class PytestSuiteError(ValueError):
    """The caller's tests cannot be run; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PytestSuite:
    """Test functions in the style of pytest: ``test_*`` with plain asserts.

    Every assert outside ``try`` and ``with`` is a check of its own, so that a program that fails
    one assert scores higher than one that fails two. The end of a test is another check, unless
    its last statement is an assert.

    Attributes:
        program: The program as given; provides everything except the function under repair.
        module_names: Names of the program's module: its own, then those that tests import it by.
        tests: The prepared source of the test module.
        assert_lines: Lines of the asserts that are checks, by test function.
        end_checks: Names of the test functions whose end is a check.
        modules: Other modules that the tests import.
        checks: Names of all checks in order; empty until `Sandbox.collect` has listed them.
    """

    program: str
    module_names: tuple[str, ...]
    tests: str
    assert_lines: Mapping[str, tuple[int, ...]]
    end_checks: tuple[str, ...]
    modules: tuple[str, ...]
    checks: tuple[str, ...] = ()

    @classmethod
    def prepare(cls, tests: str, *, program: str, module: str, function: str) -> PytestSuite:
        """Prepare *tests*, a module that imports *module*, whose source is *program*.

        Tests that cannot call *function* are left out.

        Raises:
            PytestSuiteError: *tests* is not Python, contains no test of *function*, or imports a
                module that the sandbox does not have.
        """
        try:
            tree = ast.parse(tests)
        except (SyntaxError, ValueError) as error:
            raise PytestSuiteError(f"the tests are not Python: {error}") from None
        names, modules = _imports(tree, module)
        if not names:
            raise PytestSuiteError(
                f"the tests do not import the program: write `from {module} import ...` in them"
            )
        functions = _tests_in(tree)
        trees = (tree, ast.parse(program))
        chosen = [node for node in functions if may_call(node.name, function, trees)]
        if not chosen:
            raise PytestSuiteError(f"no test calls {function}; add a test that does")
        end_checks = [node.name for node in chosen if not isinstance(node.body[-1], ast.Assert)]
        assert_lines = {node.name: tuple(_split(node.body, count())) for node in chosen}
        return cls(
            program=program,
            module_names=(module, *(name for name in names if name != module)),
            tests=ast.unparse(ast.fix_missing_locations(tree)),
            assert_lines=assert_lines,
            end_checks=tuple(end_checks),
            modules=tuple(sorted(modules)),
        )

    def to_request(self) -> dict[str, object]:
        """Return the suite as `agents.se_darwin.fork_server.suite_runner.SuiteRequest`."""
        return {
            "program": self.program,
            "module_names": list(self.module_names),
            "tests": self.tests,
            "assert_lines": {name: list(lines) for name, lines in self.assert_lines.items()},
            "end_checks": list(self.end_checks),
        }

    def cases(self) -> tuple[TestCase, ...]:
        """Return a test case per check."""
        return tuple(TestCase(arguments=(check,), expected=PASSED) for check in self.checks)


def _tests_in(tree: ast.Module) -> list[ast.FunctionDef]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef):
            if node.name.lower().startswith("test"):
                raise PytestSuiteError(
                    f"{node.name} is not a plain function: only `def test_...():` at the top level "
                    "of the module can be run"
                )
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            found.append(node)
    if not found:
        raise PytestSuiteError(
            "the tests contain no function `def test_...():`; write one with plain asserts"
        )
    return found


def _imports(tree: ast.Module, module: str) -> tuple[list[str], set[str]]:
    """Return the names by which *tree* imports *module*, and the other modules it imports."""
    names, others = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            node.module = node.module or _HERE
            node.level = 0  # `from .module import` is an import of the program too
            imported = [node.module]
            if node.module.rpartition(".")[2] != module:  # `from package import module`
                within = [f"{node.module}.{alias.name}" for alias in node.names]
                ours = f"{node.module}.{module}" in within and not _is_standard(node.module)
                if ours or node.module == _HERE:
                    imported = within
        else:
            continue
        for name in imported:
            if name.rpartition(".")[2] == module:
                names.append(name)
            else:
                others.add(name)
    unavailable = sorted(
        name.replace(_HERE, "")
        for name in others
        if not _is_standard(name) and name.partition(".")[0] != "pytest"
    )
    if unavailable:
        raise PytestSuiteError(
            f"the tests import {', '.join(unavailable)}: the sandbox has only {module}, "
            "the standard library and pytest"
        )
    return list(dict.fromkeys(names)), others


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _split(block: list[ast.stmt], numbers: Iterator[int]) -> Iterator[int]:
    """Turn each assert in *block* into a check; yield the lines of the asserts."""
    for index, statement in enumerate(block):
        if isinstance(statement, ast.Assert):
            block[index] = ast.copy_location(_check(statement, next(numbers)), statement)
            yield statement.lineno
        elif isinstance(statement, ast.For | ast.While | ast.If):
            yield from _split(statement.body, numbers)
            yield from _split(statement.orelse, numbers)


def _check(statement: ast.Assert, number: int) -> ast.With:
    """Return ``with __check__(number) as __checking__: assert ...``; the check evaluates ``==``."""
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        equal = ast.Attribute(ast.Name(_CONTEXT_NAME, ast.Load()), "equal", ast.Load())
        statement.test = ast.Call(equal, [test.left, test.comparators[0]], [])
    call = ast.Call(ast.Name(CHECK_NAME, ast.Load()), [ast.Constant(number)], [])
    context = ast.withitem(call, ast.Name(_CONTEXT_NAME, ast.Store()))
    return ast.With(items=[context], body=[statement])
