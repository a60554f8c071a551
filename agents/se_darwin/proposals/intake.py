"""Read a proposed function: it becomes edits of the program, or is dropped for a reason."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.edits.difference import difference
from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.proposals.foreign_code import parse_foreign

MOST_CHARACTERS = 50_000
MODULES = frozenset(
    {
        *("abc", "array", "base64", "binascii", "bisect", "calendar", "cmath", "collections"),
        *("collections.abc", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal"),
        *("difflib", "enum", "fractions", "functools", "hashlib", "heapq", "html", "io"),
        *("itertools", "json", "keyword", "locale", "math", "numbers", "operator", "random", "re"),
        *("statistics", "string", "struct", "textwrap", "time", "types", "typing", "unicodedata"),
        *("urllib.parse", "zlib"),
    }
)
"""Modules that a proposed function may import besides those that the program imports itself."""
_EVADING_NAMES = frozenset({"exec", "eval", "compile", "globals"})
"""Functions that reach modules without an import; methods may have the same names."""
_EVADING = frozenset(
    {
        *("__import__", "__builtins__", "__loader__", "__globals__", "__subclasses__", "__mro__"),
        *("__code__", "_getframe", "f_back", "sys"),
    }
)
"""Names that do so as attributes, too."""


class DroppedProposalError(ValueError):
    """A candidate that is not run; the message is the reason, the same for all of its kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A candidate that can be run.

    Attributes:
        edits: Edits that make it of the given program.
        source: The program with them, in normal form.
        modules: Modules that it imports and the program does not.
    """

    edits: frozenset[Edit]
    source: str
    modules: frozenset[str]


def read_proposal(space: EditSpace, code: str) -> Proposal:
    """Return the edits that make *code*'s function of the program under repair.

    Its docstring, decorators and annotations stay as they are. Imports and new functions in *code*
    are moved into the function.

    Args:
        space: The program under repair.
        code: Source of the function or of a module that contains it.

    Raises:
        DroppedProposalError: It is not Python, lacks the function, or changes anything else.
    """
    if len(code) > MOST_CHARACTERS:
        raise DroppedProposalError("longer than a function")
    tree = parse_foreign(code)
    if tree is None:
        raise DroppedProposalError("not Python")
    try:
        code.encode()
        definition = _definition_in(tree, space)
        given = ast.parse(space.source)
        definition.body = [*_moved_into(definition, tree, given, space), *definition.body]
        _keep_what_is_given(definition, space.definition)
        edits = difference(space, definition)
        source = space.program(edits)
        ast.parse(source)
    except DroppedProposalError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise DroppedProposalError("not Python") from None
    if not edits:
        raise DroppedProposalError("the given program")
    return Proposal(edits=edits, source=source, modules=frozenset(_new_modules(definition, given)))


def _definition_in(tree: ast.Module, space: EditSpace) -> FunctionNode:
    """Return the new definition of the function; that of a method may stand without its class."""
    for name in dict.fromkeys((space.function, space.function.rpartition(".")[2])):
        with suppress(ValueError):
            definition = definition_of(tree, name)
            if type(definition) is type(space.definition):  # both asynchronous, or neither
                return definition
    raise DroppedProposalError("without the function")


def _moved_into(
    definition: FunctionNode, tree: ast.Module, given: ast.Module, space: EditSpace
) -> list[ast.stmt]:
    """Return imports and new functions of *tree*, to be moved into *definition*.

    Raises:
        DroppedProposalError: *tree* changes something else of the program *given*.
    """
    moved: list[ast.stmt] = []
    same = {ast.dump(node) for node in _definitions(given)}
    names = {node.name for node in _definitions(given)}
    used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    owners = space.function.split(".")[:-1]
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if {alias.asname or alias.name.partition(".")[0] for alias in node.names} & used:
                moved += [] if _has(given, node) else [node]
        elif isinstance(node, ast.ClassDef) and owners and node.name == owners[0]:
            _check_class(node, definition, same, names)
        elif isinstance(node, FunctionNode | ast.ClassDef):
            if node is definition or ast.dump(node) in same:
                continue
            if node.name.startswith(("test_", "Test")):
                raise DroppedProposalError("with tests of its own")
            if node.name in names or not isinstance(node, FunctionNode):
                raise DroppedProposalError("another definition changed")
            moved.append(node)
    return moved


def _has(given: ast.Module, node: ast.stmt) -> bool:
    return any(ast.dump(node) == ast.dump(other) for other in given.body)


def _check_class(
    node: ast.ClassDef, definition: FunctionNode, same: set[str], names: set[str]
) -> None:
    for member in _definitions(node):
        is_known = ast.dump(member) in same or member is definition
        inside = any(inner is definition for inner in ast.walk(member))
        if not (is_known or inside):
            changed = "another definition changed" if member.name in names else "a new method"
            raise DroppedProposalError(changed)


def _definitions(
    tree: ast.AST,
) -> Iterator[FunctionNode | ast.ClassDef]:
    """Yield the definitions of a module or class, and those of its classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode | ast.ClassDef):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node)


def _keep_what_is_given(definition: FunctionNode, given: FunctionNode) -> None:
    """Give *definition* the docstring, decorators and annotations of the program."""
    definition.decorator_list, definition.returns = given.decorator_list, given.returns
    definition.name, definition.type_comment = given.name, given.type_comment
    annotations = {arg.arg: arg.annotation for arg in _parameters(given)}
    for arg in _parameters(definition):
        arg.annotation = copy.deepcopy(annotations.get(arg.arg))
        arg.type_comment = None
    body = [node for node in definition.body if not _is_text(node)]
    docstring = given.body[:1] if ast.get_docstring(given, clean=False) is not None else []
    definition.body = [*docstring, *body] or [ast.Pass()]


def _parameters(definition: FunctionNode) -> list[ast.arg]:
    return [node for node in ast.walk(definition.args) if isinstance(node, ast.arg)]


def _is_text(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _new_modules(definition: FunctionNode, given: ast.Module) -> Iterator[str]:
    """Yield the modules that *definition* imports and the program *given* does not.

    Raises:
        DroppedProposalError: It may not import one, or uses a name that reaches them otherwise.
    """
    own = set(_imported(given))
    for name in _imported(definition):
        if name in own:
            continue
        if name not in MODULES:
            raise DroppedProposalError("with an import that is not allowed")
        yield name
    if set(_evading_names(definition)) - set(_evading_names(given)):
        raise DroppedProposalError("using a name that is not allowed")


def _evading_names(tree: ast.AST) -> Iterator[str]:
    """Yield what *tree* uses or imports of the names that reach modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _EVADING | _EVADING_NAMES:
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr in _EVADING:
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names}
            yield from names & (_EVADING | _EVADING_NAMES)


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
