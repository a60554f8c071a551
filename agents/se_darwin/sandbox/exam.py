"""A test module of the caller's, prepared to be run in the jail, apart from the candidates."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from agents.se_darwin.jail.check import HELD
from agents.se_darwin.jail.examiner import CHECK_NAME
from agents.se_darwin.sandbox.execution import TestCase
from agents.se_darwin.sandbox.mentions import reaches

_CONTEXT_NAME = "__held__"
_HERE = "__here__"  # the package of `from . import module`


class ExamError(ValueError):
    """The caller's tests cannot be run; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exam:
    """Test functions in the style of pytest: ``test_*``, plain asserts.

    Every assert that stands in no ``try`` or ``with`` is a check of its own, so that a program
    which fails one is better than one which fails two. That a test ends is another, unless it
    ends in an assert.

    Attributes:
        program: The program as given, for everything in it but the function under repair.
        names: Names of the program's module, its own first, then those that tests import it by.
        tests: The prepared source.
        asserts: Per test function, the lines of those asserts.
        ends: Names of the test functions whose end is a check.
        modules: What the tests import besides.
        checks: Names of all checks in order; empty until the jail has collected them.
    """

    program: str
    names: tuple[str, ...]
    tests: str
    asserts: Mapping[str, tuple[int, ...]]
    ends: tuple[str, ...]
    modules: tuple[str, ...]
    checks: tuple[str, ...] = ()

    @classmethod
    def prepare(cls, tests: str, *, program: str, module: str, function: str) -> Exam:
        """Read *tests*, a module that imports *module*, whose source is *program*.

        Tests that have nothing to do with *function* are left out.

        Raises:
            ExamError: It is not Python, has no such tests, or imports what the jail does not have.
        """
        try:
            tree = ast.parse(tests)
        except (SyntaxError, ValueError) as error:
            raise ExamError(f"the tests are not Python: {error}") from None
        names, modules = _imports(tree, module)
        if not names:
            raise ExamError(
                f"the tests do not import the program: write `from {module} import ...` in them"
            )
        functions = _tests_in(tree)
        about = (tree, ast.parse(program))
        chosen = [node for node in functions if reaches(node.name, function, about)]
        if not chosen:
            raise ExamError(f"no test calls {function}: there is nothing to judge it by")
        ends = [node.name for node in chosen if not isinstance(node.body[-1], ast.Assert)]
        asserts = {node.name: tuple(_split(node.body, count())) for node in chosen}
        return cls(
            program=program,
            names=(module, *(name for name in names if name != module)),
            tests=ast.unparse(ast.fix_missing_locations(tree)),
            asserts=asserts,
            ends=tuple(ends),
            modules=tuple(sorted(modules)),
        )

    def to_request(self) -> dict[str, object]:
        """What the jail is told; see `agents.se_darwin.jail.examiner.ExamRequest`."""
        return {
            "program": self.program,
            "names": list(self.names),
            "tests": self.tests,
            "asserts": {name: list(lines) for name, lines in self.asserts.items()},
            "ends": list(self.ends),
        }

    def cases(self) -> tuple[TestCase, ...]:
        """A test case per check."""
        return tuple(TestCase(arguments=(check,), expected=HELD) for check in self.checks)


def _tests_in(tree: ast.Module) -> list[ast.FunctionDef]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef):
            if node.name.lower().startswith("test"):
                raise ExamError(
                    f"{node.name} is no plain function: of tests only `def test_...():` at the "
                    "top level are run"
                )
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            found.append(node)
    if not found:
        raise ExamError(
            "the tests hold no function `def test_...():`: write one, with plain asserts"
        )
    return found


def _imports(tree: ast.Module, module: str) -> tuple[list[str], set[str]]:
    """Names by which *tree* imports *module*, and the other modules that it imports."""
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
    foreign = sorted(
        name.replace(_HERE, "")
        for name in others
        if not _is_standard(name) and name.partition(".")[0] != "pytest"
    )
    if foreign:
        raise ExamError(
            f"the tests import {', '.join(foreign)}: the sandbox has {module}, the standard "
            "library and pytest only"
        )
    return list(dict.fromkeys(names)), others


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _split(block: list[ast.stmt], numbers: Iterator[int]) -> Iterator[int]:
    """Make each assert in *block* a check of its own; yield their lines."""
    for index, statement in enumerate(block):
        if isinstance(statement, ast.Assert):
            block[index] = ast.copy_location(_check(statement, next(numbers)), statement)
            yield statement.lineno
        elif isinstance(statement, ast.For | ast.While | ast.If):
            yield from _split(statement.body, numbers)
            yield from _split(statement.orelse, numbers)


def _check(statement: ast.Assert, number: int) -> ast.With:
    """``with __check__(number) as __held__: assert ...``; an equation is asked of the check."""
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        equal = ast.Attribute(ast.Name(_CONTEXT_NAME, ast.Load()), "equal", ast.Load())
        statement.test = ast.Call(equal, [test.left, test.comparators[0]], [])
    call = ast.Call(ast.Name(CHECK_NAME, ast.Load()), [ast.Constant(number)], [])
    held = ast.withitem(call, ast.Name(_CONTEXT_NAME, ast.Store()))
    return ast.With(items=[held], body=[statement])
