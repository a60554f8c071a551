"""Modules that a program and its tests import, and which of them are installed here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec, resolve_name
from pathlib import Path

from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.fork_server.given_modules import module_names
from agents.se_darwin.sandbox import ProgramSources
from agents.se_darwin.sandbox.pytest_suite import HERE


def needed_modules(program: ProgramSources, function: str) -> set[str]:
    """Modules that *function* of *program* needs to run and that are not the program's own.

    Imports inside other functions, in a ``try`` with handlers, and for type checkers are skipped.
    """
    own_names = {*module_names(program.own_modules), program.module}
    own_names |= {name.rpartition(".")[0] for name in own_names}
    package = program.package
    modules = set()
    for name in _needed_imports(ast.parse(program.code), function):
        if name.startswith(".") and package:
            with suppress(ImportError):  # beyond the top package
                name = resolve_name(name, package)  # noqa: PLW2901 - the same module
        if name not in own_names:
            modules.add(name)
    return modules


def missing_modules(modules: Iterable[str], test_sources: Iterable[str]) -> list[str]:
    """Return those of *modules* that tests need, and that neither Python nor a package has.

    Args:
        modules: Names that the tests may import: modules, or what modules contain.
        test_sources: Sources of all files of the tests.
    """
    trees = map(ast.parse, test_sources)
    needed = {name.lstrip(".") for tree in trees for name in _needed_imports(tree, "")}
    return sorted(
        name
        for name in modules
        if not is_available(name)
        if name.startswith(HERE) or {name, name.rpartition(".")[0]} & needed
    )


def modules_to_import(
    program: ProgramSources, test_sources: Iterable[str], needed: Collection[str]
) -> set[str]:
    """Return all modules that the sandbox must import before *program* runs with its tests.

    A module that the program's own package imports in a ``try``, from that package, and that is not
    among its sources is left out: another copy of the package may be installed, and its compiled
    functions would replace those under repair.

    Args:
        program: The program.
        test_sources: Sources of all files of the tests.
        needed: Modules that the function and the tests need.
    """
    tree = ast.parse(program.code)
    own_trees = [ast.parse(module) for module in program.own_modules.values()]
    own_names = module_names(program.own_modules)
    modules = set(needed)
    modules |= {
        name
        for module_tree in (tree, *own_trees)
        for name in _all_imports(module_tree)
        if _is_standard(name)
    }
    modules |= {
        name
        for module_tree in own_trees
        for name in _all_imports(module_tree)
        if name not in own_names and is_available(name)
        if not is_within(name, own_names) or name in _needed_imports(module_tree, "")
    }
    parts = {
        part
        for module_tree in (tree, *own_trees, *map(ast.parse, test_sources))
        for node in ast.walk(module_tree)
        for part in _imported_parts(node)
        if part.rpartition(".")[0] in modules
    }
    return modules | parts


def is_within(name: str, packages: Collection[str]) -> bool:
    """Whether the module *name* lies in one of *packages*, at any depth."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in packages for count in range(1, len(parts)))


def is_available(name: str) -> bool:
    """Whether the sandbox can import the module *name*: it is a standard or an installed one."""
    top = name.partition(".")[0]
    return _is_standard(name) or (bool(top) and _folder_of(top) is not None)


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _folder_of(package: str) -> Path | None:
    """Folder of installed packages that contains *package*; None if it is not installed."""
    spec = find_spec(package)
    origin = None if spec is None else spec.origin
    if spec is None or origin is None:
        return None
    folder = Path(origin).parents[1 if spec.submodule_search_locations is not None else 0]
    return folder if folder.name in ("site-packages", "dist-packages") else None


def package_folders(modules: Collection[str]) -> list[Path]:
    """Folders that contain those of *modules* that are installed packages."""
    packages = {name.partition(".")[0] for name in modules if not _is_standard(name)}
    return sorted({folder for package in packages if (folder := _folder_of(package)) is not None})


def _all_imports(tree: ast.Module) -> set[str]:
    return {name for node in ast.walk(tree) for name in _imported(node)}


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []


def _imported_parts(node: ast.AST) -> list[str]:
    """Dotted names that ``from package import name`` imports: modules, or what they contain."""
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _needed_imports(node: ast.AST, function: str) -> Iterator[str]:
    """Yield the modules that *function* needs to run.

    Imports inside other functions, in a ``try`` with handlers, and for type checkers are skipped,
    and those under an ``if``, such as one of `sys.version_info`, if they are not installed.
    """
    yield from _imported(node)
    for child in ast.iter_child_nodes(node):
        optional = isinstance(child, ast.Try) and bool(child.handlers)
        name = function.rpartition(".")[2]
        other_function = isinstance(child, FunctionNode) and child.name != name
        typing = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if not (optional or other_function or typing):
            modules = _needed_imports(child, function)
            yield from filter(is_available, modules) if isinstance(child, ast.If) else modules
