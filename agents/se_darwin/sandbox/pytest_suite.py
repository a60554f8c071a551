"""The caller's test module, prepared to run in the sandbox apart from the candidates."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import PurePath

from agents.se_darwin.edits.nodes import ForNode
from agents.se_darwin.fork_server.check import PASSED
from agents.se_darwin.fork_server.given_modules import module_names
from agents.se_darwin.fork_server.suite_runner import CHECK_NAME, COMPARED_NAME
from agents.se_darwin.sandbox.call_graph import names_that_reach, refers_to
from agents.se_darwin.sandbox.execution import TestCase
from agents.se_darwin.sandbox.found_tests import (
    FoundTest,
    PytestSuiteError,
    find_tests,
    is_assert,
    is_automatic,
)
from agents.se_darwin.sandbox.keyword_selection import KeywordError, selector

_CONTEXT_NAME = "__checking__"
_COMPARING = re.compile(r"assert\w*(equals?|in|less|greater|close|with)", re.IGNORECASE)
_IDENTITIES = (ast.Is, ast.IsNot)
HERE = "__here__"  # the package of `from . import module`


@dataclass(frozen=True, slots=True)
class TestSources:
    """The caller's test files.

    Attributes:
        code: The test module.
        conftests: Files ``conftest.py``, the farthest first.
        helpers: Other modules of the tests' own, by the name that imports them.
        keyword: Expression that the tests to run match, as ``-k`` of pytest; empty for all.
        aliases: Names by which they import modules of the program's own, with their real names.
        path: Path of the test module from the working folder, whose parts *keyword* may name.
    """

    __test__ = False  # pytest must not collect it

    code: str
    conftests: tuple[str, ...] = ()
    helpers: Mapping[str, str] = field(default_factory=dict)
    keyword: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    path: str = ""


@dataclass(frozen=True, slots=True)
class ProgramSources:
    """The program under repair.

    Attributes:
        code: Its source.
        module: Dotted name of its module.
        own_modules: Sources of modules of its own that it may import, by dotted name; that of a
            package as ``package.__init__``.
    """

    code: str
    module: str
    own_modules: Mapping[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """Package from which relative imports of the program start; empty if it has none."""
        if any(name.startswith(f"{self.module}.") for name in self.own_modules):
            return self.module  # the program is the package's own `__init__.py`
        return self.module.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class PytestSuite:
    """Tests in the style of pytest: ``test_*`` with plain asserts, in functions or classes.

    Every assert outside ``try`` and ``with`` is a check of its own, also ``self.assertEqual`` and
    the like, so that a program that fails one assert scores higher than one that fails two. The end
    of a test is another check, unless its last statement is an assert.

    Attributes:
        program: The program as given; provides everything except the function under repair.
        aliases: Other names by which the tests import the program's modules, with their real names.
        tests: The prepared source of the test module.
        assert_lines: Lines of the asserts that are checks, by test: ``test`` or ``Class.test``.
        end_checks: Names of the tests whose end is a check.
        modules: Other modules that the tests import.
        conftests: Prepared sources of the conftest files, the farthest first.
        helpers: Prepared sources of modules of the tests' own, by the name that imports them.
        checks: Names of all checks in order; empty until `Sandbox.collect` has listed them.
        left_out: Why a test of the function cannot be run, for each such test.
        missing_modules: Modules that they asked for when they were collected and the sandbox does
            not have.
        within: Whether the tests must run in the process of the program, because they give it, or
            get from it, what cannot be sent between processes.
    """

    program: ProgramSources
    aliases: Mapping[str, str]
    tests: str
    assert_lines: Mapping[str, tuple[int, ...]]
    end_checks: tuple[str, ...]
    modules: tuple[str, ...]
    conftests: tuple[str, ...] = ()
    helpers: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    missing_modules: tuple[str, ...] = ()
    within: bool = False

    @classmethod
    def prepare(cls, tests: TestSources, program: ProgramSources, function: str) -> PytestSuite:
        """Prepare *tests*, which import *program*.

        Tests that cannot call *function* are left out; if it is empty, none is.

        Raises:
            PytestSuiteError: *tests* are not Python, or contain no test of *function*.
        """
        helpers = tests.helpers
        tree = _parse(tests.code, "the tests")
        conftest_trees = [_parse(conftest, "conftest.py") for conftest in tests.conftests]
        helper_trees = {name: _parse(source, f"{name}.py") for name, source in helpers.items()}
        trees = [tree, *conftest_trees, *helper_trees.values()]
        own_trees = [_parse(source, name) for name, source in program.own_modules.items()]
        own_modules = {*helpers, *tests.aliases, *module_names(program.own_modules)}
        own_modules |= {"conftest"} if conftest_trees else set()
        module = program.module.rpartition(".")[2]
        names: list[str] = []
        modules: set[str] = set()
        for suite_tree in trees:
            imported_names, imported_modules = _imports(suite_tree, module, own_modules)
            names += imported_names
            modules |= imported_modules
        if not names and not program.own_modules:
            raise PytestSuiteError(
                f"the tests do not import the program: write `from {module} import ...` in them"
            )
        everywhere = [*trees, *own_trees, ast.parse(program.code)]
        callers = names_that_reach(_name_in_calls(function), everywhere)
        automatic = ast.Module(
            [statement for tree in trees for statement in tree.body if is_automatic(statement)], []
        )
        always = not function or refers_to(automatic, callers)
        chosen = {
            name: test.node
            for name, test in _selected(tests, find_tests(tree, helper_trees.values())).items()
            if always
            or any(refers_to(statement, callers) for statement in (test.node, *test.set_up))
        }
        if not chosen:
            named = f" of those that match {tests.keyword!r}" if tests.keyword else ""
            raise PytestSuiteError(f"no test{named} calls {function}; add a test that does")
        end_checks = [name for name, node in chosen.items() if not is_assert(node.body[-1])]
        lines: dict[ast.stmt, tuple[int, ...]] = {}  # a method may be a test of many classes
        for node in chosen.values():
            if node not in lines:
                lines[node] = tuple(_split(node.body, count()))
        assert_lines = {name: lines[node] for name, node in chosen.items()}
        watched = [_WatchedAsserts().visit(suite_tree) for suite_tree in trees]
        sources = [ast.unparse(ast.fix_missing_locations(suite_tree)) for suite_tree in watched]
        last = 1 + len(conftest_trees)
        return cls(
            program=program,
            aliases=dict(tests.aliases)
            | {name: program.module for name in names if name != program.module},
            tests=sources[0],
            assert_lines=assert_lines,
            end_checks=tuple(end_checks),
            modules=tuple(sorted(modules)),
            conftests=tuple(sources[1:last]),
            helpers=dict(zip(helper_trees, sources[last:], strict=True)),
        )

    def without(self, reasons: Mapping[str, str], function: str) -> PytestSuite:
        """Return the suite without the tests that *reasons* name; its checks are not listed yet.

        Raises:
            PytestSuiteError: No test of *function* is left.
        """
        left_out = [f"{name} {why}" for name, why in reasons.items() if name in self.assert_lines]
        kept = {name: lines for name, lines in self.assert_lines.items() if name not in reasons}
        if not kept:
            raise PytestSuiteError(f"no test of {function} can be run: {'; '.join(left_out)}")
        return replace(
            self,
            assert_lines=kept,
            end_checks=tuple(name for name in self.end_checks if name in kept),
            checks=(),
            left_out=(*self.left_out, *left_out),
        )

    def to_request(self) -> dict[str, object]:
        """Return the suite as `agents.se_darwin.fork_server.suite_runner.SuiteRequest`."""
        return {
            "program": self.program.code,
            "module": self.program.module,
            "own_modules": dict(self.program.own_modules),
            "aliases": dict(self.aliases),
            "tests": self.tests,
            "conftests": list(self.conftests),
            "helpers": dict(self.helpers),
            "assert_lines": {name: list(lines) for name, lines in self.assert_lines.items()},
            "end_checks": list(self.end_checks),
        }

    def cases(self) -> tuple[TestCase, ...]:
        """Return a test case per check."""
        return tuple(TestCase(arguments=(check,), expected=PASSED) for check in self.checks)


def _parse(source: str, what: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        are = "are" if what == "the tests" else "is"
        raise PytestSuiteError(f"{what} {are} not Python: {error}") from None


def _selected(tests: TestSources, all_tests: Mapping[str, FoundTest]) -> dict[str, FoundTest]:
    """Those of *all_tests* that the keyword of *tests* selects.

    Raises:
        PytestSuiteError: It is not an expression, or selects no test.
    """
    try:
        is_selected = selector(tests.keyword)
    except KeywordError as error:
        raise PytestSuiteError(str(error)) from None
    places = PurePath(tests.path).parts
    selected = {
        name: test for name, test in all_tests.items() if is_selected({*places, *test.names})
    }
    if not selected:
        raise PytestSuiteError(
            f"no test matches -k {tests.keyword!r}: write a part of the name of a test, a class, a "
            "mark or the test file (ids of parametrize do not count)"
        )
    return selected


def _name_in_calls(function: str) -> str:
    """Name in code that calls *function*: of ``Class.__add__``, which operators call, the class."""
    owner, _, name = function.rpartition(".")
    is_special = owner and name.startswith("__") and name.endswith("__")
    return owner.rpartition(".")[2] if is_special else name


def _imports(
    tree: ast.Module, module: str, own_modules: Collection[str]
) -> tuple[list[str], set[str]]:
    """Return the names by which *tree* imports *module*, and the other modules it imports.

    The tests' *own_modules* are left out.
    """
    names, others = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            node.module = node.module or HERE
            node.level = 0  # `from .module import` is an import of the program too
            imported = [node.module]
            if node.module.rpartition(".")[2] != module:  # `from package import module`
                within = [f"{node.module}.{alias.name}" for alias in node.names]
                ours = f"{node.module}.{module}" in within and not _is_standard(node.module)
                if ours or node.module == HERE:
                    imported = within
        else:
            continue
        for name in imported:
            package, _, last = name.rpartition(".")
            if name in own_modules:  # also if its last part is that of the program's name
                continue
            if last == module:
                names.append(name)
            elif package not in own_modules or isinstance(node, ast.Import):
                others.add(name)
    return list(dict.fromkeys(names)), others


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _split(block: list[ast.stmt], numbers: Iterator[int]) -> Iterator[int]:
    """Turn each assert in *block* into a check; yield the lines of the asserts."""
    for index, statement in enumerate(block):
        if is_assert(statement):
            block[index] = ast.copy_location(_check(statement, next(numbers)), statement)
            yield statement.lineno
        elif isinstance(statement, ForNode | ast.While | ast.If):
            yield from _split(statement.body, numbers)
            yield from _split(statement.orelse, numbers)


def _check(statement: ast.stmt, number: int) -> ast.With:
    """Return ``with __check__(number) as __checking__: assert ...``; the check evaluates ``==``."""
    test = statement.test if isinstance(statement, ast.Assert) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        equal = ast.Attribute(ast.Name(_CONTEXT_NAME, ast.Load()), "equal", ast.Load())
        call = ast.Call(equal, [test.left, test.comparators[0]], [])
        statement = ast.Assert(call, getattr(statement, "msg", None))
    call = ast.Call(ast.Name(CHECK_NAME, ast.Load()), [ast.Constant(number)], [])
    context = ast.withitem(call, ast.Name(_CONTEXT_NAME, ast.Store()))
    return ast.With(items=[context], body=[statement])


class _WatchedAsserts(ast.NodeTransformer):
    """Passes all that asserts compare, and what is given to ``assertEqual``, to `COMPARED_NAME`.

    A candidate could return an object that is equal to everything.
    """

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        _WatchedComparisons().generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name.startswith("assert"):
            _WatchedComparisons().generic_visit(node)
            if _COMPARING.fullmatch(name):
                node.args = [_watched(each) for each in node.args]
                for keyword in node.keywords:
                    keyword.value = _watched(keyword.value)
        else:
            self.generic_visit(node)
        return node


class _WatchedComparisons(ast.NodeTransformer):
    """Passes to it all that is compared by other operators than ``is`` and ``is not``."""

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        if not all(isinstance(operator, _IDENTITIES) for operator in node.ops):
            node.left = _watched(node.left)
            node.comparators = [_watched(each) for each in node.comparators]
        return node


def _watched(value: ast.expr) -> ast.expr:
    if isinstance(value, ast.Starred):
        return ast.Starred(_watched(value.value), ast.Load())
    if isinstance(value, ast.Constant):
        return value
    return ast.Call(ast.Name(COMPARED_NAME, ast.Load()), [value], [])
