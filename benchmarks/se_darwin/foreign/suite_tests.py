"""Tests cut out of a test module of a package: those of one function, check by check."""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from benchmarks.se_darwin.foreign.bug import MODULE
from benchmarks.se_darwin.foreign.cutting import needed_statements, read_names

_CLASS_CHECKS = ("assert", "fail")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A test.

    Attributes:
        owner: Name of its class; empty for a function.
        node: Its definition.
        checks: Positions of its statements that check, or of its rows of parameters.
        rows: Whether *checks* are rows of parameters.
    """

    owner: str
    node: ast.FunctionDef
    checks: tuple[int, ...]
    rows: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CutSuite:
    """The tests of one function.

    Attributes:
        tree: The test module; it imports the program.
        units: Tests of the function.
        used: Names of the program that they use.
        aliases: Names by which the test module has the program.
    """

    tree: ast.Module
    units: tuple[Unit, ...]
    used: frozenset[str]
    aliases: frozenset[str] = field(default_factory=frozenset)

    @property
    def checks(self) -> list[tuple[Unit, int]]:
        """All checks in order."""
        return [(unit, check) for unit in self.units for check in unit.checks]

    def module(self, chosen: Collection[int], *, separate: bool = False) -> str:
        """Return the test module with the checks at the positions *chosen* of `checks`.

        Args:
            chosen: Positions of checks.
            separate: Whether each check is a test of its own, named ``...__position``.
        """
        tests: dict[str, list[ast.FunctionDef]] = {}
        numbered = list(enumerate(self.checks))
        groups = [
            (unit, [(at, check) for at, (each, check) in numbered if each is unit and at in chosen])
            for unit in self.units
        ]
        for unit, kept in groups:
            if separate:
                made = [_test(unit, [check], f"__{at}") for at, check in kept]
            else:
                made = [_test(unit, [check for _, check in kept], "")] if kept else []
            tests.setdefault(unit.owner, []).extend(made)
        classes = {owner: each for owner, each in tests.items() if owner and each}
        needed = set(classes)
        for each in tests.values():
            needed |= {name for test in each for name in read_names(test)}
            needed |= {argument.arg for test in each for argument in test.args.args}
        bare = ast.Module([_bare(node, classes.keys()) for node in self.tree.body], [])
        kept_statements = needed_statements(bare, needed)
        body: list[ast.stmt] = []
        for index in sorted(kept_statements):
            statement = bare.body[index]
            if isinstance(statement, ast.ClassDef) and statement.name in classes:
                statement.body = [*statement.body, *classes[statement.name]]
            body.append(statement)
        body += tests.get("", [])
        return ast.unparse(ast.fix_missing_locations(ast.Module(body, []))) + "\n"

    def expressions(self, function: str) -> list[str]:
        """Calls of *function* in the checks that use nothing but what the module imports."""
        known = {name for node in self.tree.body for name in _imported(node)} | _BUILTINS
        found: dict[str, None] = {}
        for unit in self.units:
            for node in ast.walk(unit.node):
                calls = isinstance(node, ast.Call) and function in ast.unparse(node.func).split(".")
                if calls and read_names(node) <= known:
                    found[ast.unparse(node)] = None
        return list(found)

    def imports(self) -> str:
        """Import statements of the module, except of the program."""
        return "\n".join(
            ast.unparse(node)
            for node in self.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            and "__future__" not in ast.unparse(node)
        )


_BUILTINS = set(dir(__builtins__)) if not isinstance(__builtins__, dict) else set(__builtins__)


def cut_suite(
    source: str, package: str, stem: str, defined: Collection[str], function: str
) -> CutSuite | None:
    """Cut the tests of *function* out of the test module *source*; None if there are none.

    Args:
        source: Text of the test module.
        package: Name of the package that it tests.
        stem: Name of the module in which *function* is.
        defined: Names that this module defines.
        function: Name of the function, or ``Class.method``.
    """
    rewriting = _ImportRewriting(package, stem, frozenset(defined))
    tree = rewriting.visit(ast.parse(source))
    units = []
    used: set[str] = set()
    for owner, node in _tests(tree):
        names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        names |= read_names(node)
        if not set(_names_of(function)) & names or names & rewriting.missing:
            continue
        attributes = {
            each.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Name)
            and each.value.id in rewriting.aliases
        }
        if not attributes <= set(defined):
            continue
        unit = _unit(owner, node)
        if unit is not None:
            units.append(unit)
            used |= attributes | (names & rewriting.imported)
    if not units:
        return None
    every = CutSuite(
        tree=tree,
        units=tuple(units),
        used=frozenset(),
        aliases=frozenset(rewriting.aliases),
    )
    try:
        everything = ast.parse(every.module(range(len(every.checks))))
    except (SyntaxError, ValueError, RecursionError):
        return None
    used |= read_names(everything) & rewriting.imported
    if read_names(everything) & rewriting.missing:
        return None
    return CutSuite(
        tree=tree,
        units=tuple(units),
        used=frozenset(used),
        aliases=frozenset(rewriting.aliases),
    )


def _names_of(function: str) -> Sequence[str]:
    owner, _, name = function.rpartition(".")
    return (owner,) if owner and name.startswith("__") else (name,)


class _ImportRewriting(ast.NodeTransformer):
    """Makes imports of the package imports of the program."""

    def __init__(self, package: str, stem: str, defined: frozenset[str]) -> None:
        self._package, self._stem, self._defined = package, stem, defined
        self.aliases: set[str] = set()
        self.imported: set[str] = set()
        self.missing: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        """``from package.module import name`` becomes ``from program import name``."""
        module = node.module or ""
        if not node.level and module.partition(".")[0] != self._package:
            return node
        made: list[ast.stmt] = []
        for alias in node.names:
            name = alias.asname or alias.name
            if alias.name in self._defined:
                self.imported.add(alias.name)
                if name != alias.name:
                    self.missing.add(name)  # `needed` looks for the program's own names
                made.append(ast.ImportFrom(MODULE, [alias], 0))
            elif alias.name == self._stem:
                self.aliases.add(name)
                made.append(ast.Import([ast.alias(MODULE, name)]))
            else:
                self.missing.add(name)
        return made or ast.Pass()

    def visit_Import(self, node: ast.Import) -> ast.AST | list[ast.stmt]:
        """``import package.module as name`` becomes ``import program as name``."""
        made: list[ast.stmt] = []
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            if alias.name.partition(".")[0] != self._package:
                made.append(ast.Import([alias]))
            elif alias.asname or "." not in alias.name:
                self.aliases.add(name)
                made.append(ast.Import([ast.alias(MODULE, name)]))
            else:
                self.missing.add(name)
        return made or ast.Pass()


def _tests(tree: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    found: list[tuple[str, ast.FunctionDef]] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            found.append(("", node))
        elif isinstance(node, ast.ClassDef):
            found += [
                (node.name, each)
                for each in node.body
                if isinstance(each, ast.FunctionDef) and each.name.startswith("test")
            ]
    return found


def _unit(owner: str, node: ast.FunctionDef) -> Unit | None:
    rows = _rows(node)
    if rows is not None:
        return Unit(owner=owner, node=node, checks=tuple(range(len(rows.elts))), rows=True)
    if node.decorator_list:
        return None
    checks = tuple(index for index, each in enumerate(node.body) if _checks(each))
    return Unit(owner=owner, node=node, checks=checks, rows=False) if checks else None


def _rows(node: ast.FunctionDef) -> ast.List | ast.Tuple | None:
    """Rows of the only decorator ``@pytest.mark.parametrize(names, rows)``."""
    if len(node.decorator_list) != 1:
        return None
    call = node.decorator_list[0]
    if (
        isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("parametrize")
        and len(call.args) == 2
        and isinstance(call.args[1], ast.List | ast.Tuple)
    ):
        return call.args[1]
    return None


def _checks(node: ast.stmt) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.Assert):
            return True
        if isinstance(each, ast.Call):
            name = ast.unparse(each.func).rpartition(".")[2]
            if name.startswith(_CLASS_CHECKS) or name == "raises":
                return True
    return False


def _test(unit: Unit, kept: Sequence[int], suffix: str) -> ast.FunctionDef:
    node = copy.deepcopy(unit.node)
    node.name += suffix
    if unit.rows:
        rows = _rows(node)
        if rows is not None:
            rows.elts = [each for index, each in enumerate(rows.elts) if index in kept]
    else:
        last = max(kept)
        node.body = [
            each
            for index, each in enumerate(node.body)
            if index in kept or (index not in unit.checks and index < last)
        ]
    return node


def _bare(node: ast.stmt, classes: Collection[str]) -> ast.stmt:
    """Copy of *node*; of the tests' *classes*, without tests."""
    node = copy.deepcopy(node)
    if isinstance(node, ast.ClassDef) and node.name in classes:
        node.body = [
            each
            for each in node.body
            if not (isinstance(each, ast.FunctionDef) and each.name.startswith("test"))
        ]
    return node


def _imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return []
