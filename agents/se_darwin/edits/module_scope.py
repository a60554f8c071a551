"""What the program around a function offers as ingredients of edits of the function."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from agents.se_darwin.edits.nodes import FunctionNode

_MAX_TEXT = 80
_BUILTIN_NAMES = frozenset(dir(builtins))
_NO_FUNCTIONS = ("__future__", "abc", "contextlib", "dataclasses", "enum", "functools", "typing")
"""Modules whose names are not for values: decorators, base classes and annotations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleScope:
    """Ingredients from the module and the class of a function, in order of definition.

    Attributes:
        known: Names that the function can read.
        functions: Names of the module's other functions and classes that take one argument, then
            of those that it imports by name.
        modules: Names of the modules that it imports.
        constants: Names that its top level assigns.
        exceptions: Texts of the exceptions that its ``raise`` statements raise, those of the
            function first; without those that name a variable which the function lacks.
        exception_classes: Names of the exception classes that it raises, handles or defines.
        attributes: Names of the attributes of ``self`` that the class uses, without its methods.
        methods: Names of the methods of the class.
        signatures: Parameters of functions, of methods of the class and of classes, by name;
            without ``self``.
        flags: Names of the fields of classes whose annotation is ``bool``.
        enums: Members of the enumerations that it defines, by class.
    """

    known: frozenset[str]
    functions: tuple[str, ...]
    modules: tuple[str, ...]
    constants: tuple[str, ...]
    exceptions: tuple[str, ...]
    exception_classes: tuple[str, ...]
    attributes: tuple[str, ...]
    methods: tuple[str, ...]
    signatures: Mapping[str, tuple[str, ...]]
    flags: tuple[str, ...]
    enums: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(
        cls, tree: ast.Module, definition: FunctionNode, variables: Sequence[str]
    ) -> ModuleScope:
        """Collect what *tree* offers to *definition*, which has *variables*."""
        known = _BUILTIN_NAMES | {*_top_level_names(tree), *variables}
        function_nodes, module_nodes = list(ast.walk(definition)), list(ast.walk(tree))
        raised = [
            node.exc
            for node in (*function_nodes, *module_nodes)
            if isinstance(node, ast.Raise) and node.exc
        ]
        classes = [_class_name(exception) for exception in raised]
        for node in (*function_nodes, *module_nodes):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                classes += [_class_name(alternative) for alternative in _alternatives(node.type)]
            elif isinstance(node, ast.ClassDef) and any(map(_is_exception, node.bases)):
                classes.append(node.name)
        owner = _class_of(tree, definition)
        methods, attributes = _members(owner) if owner is not None else ((), ())
        return cls(
            known=known,
            functions=_once(name for name in _functions(tree) if name != definition.name),
            modules=_once(
                alias.asname or alias.name
                for node in tree.body
                if isinstance(node, ast.Import)
                for alias in node.names
            ),
            constants=_once(_constants(tree)),
            exceptions=_once(
                text
                for exception in raised
                if _names_in(exception) <= known
                and len(text := ast.unparse(exception)) <= _MAX_TEXT
            ),
            exception_classes=_once(name for name in classes if name and name in known),
            attributes=attributes,
            methods=methods,
            signatures=dict(_signatures(tree, owner)),
            flags=_once(name for name, annotation in _fields(module_nodes) if annotation == "bool"),
            enums={node.name: _values_of(node) for node in module_nodes if _is_enum(node)},
        )


def _top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, FunctionNode | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
        else:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id
                elif isinstance(part, ast.alias):
                    yield (part.asname or part.name).split(".")[0]


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and _takes_one(node.args):
            yield node.name
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module not in _NO_FUNCTIONS:
            yield from (alias.asname or alias.name for alias in node.names if alias.name.islower())


def _takes_one(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    return required <= 1 <= positional and all(arguments.kw_defaults)


def _constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and not target.id.startswith("__"):
                yield target.id


def _class_of(tree: ast.Module, definition: FunctionNode) -> ast.ClassDef | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and definition in node.body:
            return node
    return None


def _members(owner: ast.ClassDef) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the methods of a class, and the attributes of ``self`` that it uses."""
    methods: list[str] = []
    attributes: list[str] = []
    for node in owner.body:
        if isinstance(node, FunctionNode) and not node.name.startswith("__"):
            is_value = any(
                "property" in ast.unparse(decorator) for decorator in node.decorator_list
            )
            (attributes if is_value else methods).append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            attributes.append(node.target.id)
        elif isinstance(node, ast.Assign):
            attributes += [target.id for target in node.targets if isinstance(target, ast.Name)]
    attributes += [
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ]
    return _once(methods), _once(name for name in attributes if name not in methods)


def _signatures(
    tree: ast.Module, owner: ast.ClassDef | None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in (*tree.body, *(owner.body if owner else ())):
        if isinstance(node, FunctionNode):
            yield node.name, _parameters(node)
        elif isinstance(node, ast.ClassDef):
            made = [
                statement for statement in node.body if getattr(statement, "name", "") == "__init__"
            ]
            if made and isinstance(made[-1], ast.FunctionDef):
                yield node.name, _parameters(made[-1])
            else:
                yield node.name, _once(name for name, _ in _fields([node]))


def _parameters(node: FunctionNode) -> tuple[str, ...]:
    arguments = node.args
    parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return tuple(parameter.arg for parameter in parameters if parameter.arg not in ("self", "cls"))


def _fields(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield name and annotation of each field that the classes among *nodes* declare."""
    for node in nodes:
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                yield statement.target.id, ast.unparse(statement.annotation)


def _is_enum(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(base).rpartition(".")[2] in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
        for base in node.bases
    )


def _values_of(enum: ast.ClassDef) -> tuple[str, ...]:
    """Names that the body of an enumeration assigns."""
    targets = [statement.targets[0] for statement in enum.body if isinstance(statement, ast.Assign)]
    return _once(target.id for target in targets if isinstance(target, ast.Name))


def _class_name(exception: ast.expr) -> str:
    called = exception.func if isinstance(exception, ast.Call) else exception
    return called.id if isinstance(called, ast.Name) else ""


def _alternatives(handled: ast.expr) -> Sequence[ast.expr]:
    return handled.elts if isinstance(handled, ast.Tuple) else [handled]


def _is_exception(base: ast.expr) -> bool:
    return ast.unparse(base).endswith(("Exception", "Error"))


def _names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _once(items: Iterator[str] | Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
