"""What a function offers as ingredients of edits: its names, constants, conditions, statements."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from agents.se_darwin.edits.module_scope import ModuleScope
from agents.se_darwin.edits.nodes import FunctionNode

_Item = TypeVar("_Item")

MAX_TEXT = 40
_NUMERIC_CALLS = ("len", "abs", "int", "float", "round", "sum", "ord")
_CONTAINERS = (
    *("List", "ListComp", "Set", "SetComp", "Dict", "DictComp", "Tuple", "JoinedStr"),
    *("list", "sorted", "set", "dict", "tuple", "str"),
)
_LIST_METHODS = ("append", "extend", "insert", "sort", "reverse")
_TEXT_METHODS = ("lower", "upper", "strip", "split", "replace", "join", "startswith", "endswith")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Ingredients of one function, each in order of first use unless said otherwise.

    Attributes:
        names: The function's own variables, most used first.
        parameters: Names of its parameters, without ``self`` and ``cls``.
        annotated: Annotations of its parameters, by name.
        numeric: Variables that may hold a number: used as one, or never used as a container.
        sized: Variables that may hold a sequence or a container, found in the same way.
        lists: Variables that hold a list for certain.
        sets: Variables that hold a set for certain.
        texts: Variables that hold a text for certain.
        numbers: Numbers that the function contains.
        strings: String and bytes constants that it contains.
        conditions: Texts of the conditions that it tests, without ``and``, ``or`` and ``not``.
        indexes: Texts of the indexes that it uses.
        functions: Names of the functions that it calls with one argument.
        attributes: Names of attributes, by the text of the object that has them.
        returned: Texts of the values that it returns.
        values: Texts of its compound expressions.
        returns: Its ``return`` statements that have a value.
        assigned: Variables that it assigns, most used first.
        statements: Texts of its simple statements.
        places: Texts of the subscripts and attributes that it sets, then of those that it reads
            from variables that hold something else than text; without slices.
        yields: Whether it is a generator.
        inner: Names of the function itself and of those that it defines.
        uses: Where it reads each name, in order of the syntax tree.
        unused: Variables that it sets and never reads.
        hidden: Variables that only a lambda function or a comprehension has.
        unknown: Names that it reads and that neither it nor the module nor Python defines.
        unset: Usual start values of names that it changes but assigns nowhere.
        module: What the program around it offers.
    """

    names: tuple[str, ...]
    parameters: tuple[str, ...]
    annotated: dict[str, str]
    numeric: tuple[str, ...]
    sized: tuple[str, ...]
    lists: tuple[str, ...]
    sets: tuple[str, ...]
    texts: tuple[str, ...]
    numbers: tuple[int | float, ...]
    strings: tuple[str | bytes, ...]
    conditions: tuple[str, ...]
    indexes: tuple[str, ...]
    functions: tuple[str, ...]
    attributes: dict[str, tuple[str, ...]]
    returned: tuple[str, ...]
    values: tuple[str, ...]
    returns: tuple[ast.Return, ...]
    assigned: tuple[str, ...]
    statements: tuple[str, ...]
    places: tuple[str, ...]
    yields: bool
    inner: tuple[str, ...]
    uses: dict[str, tuple[ast.Name, ...]]
    unused: tuple[str, ...]
    hidden: frozenset[str]
    unknown: tuple[str, ...]
    unset: dict[str, tuple[str, ...]]
    module: ModuleScope

    @classmethod
    def of(
        cls,
        tree: ast.Module,
        definition: FunctionNode,
        nodes: tuple[ast.AST, ...],
        defined: Collection[str] = (),
    ) -> Scope:
        """Collect the ingredients of *definition* in *tree*, whose *nodes* are given.

        Names that are *defined* elsewhere are not unknown.
        """
        names = _variables(nodes)
        evidence = _Evidence(nodes)
        evidence.record_annotations(definition)
        parts = {
            id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values
        }
        constants = [
            node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in parts
        ]
        stored = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        uses: dict[str, list[ast.Name]] = {}
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                uses.setdefault(node.id, []).append(node)
        attributes: dict[str, list[str]] = {}
        for node in nodes:
            if isinstance(node, ast.Attribute):
                attributes.setdefault(ast.unparse(node.value), []).append(node.attr)
        arguments = definition.args
        parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        module = ModuleScope.of(tree, definition, names)
        bound = set(_bound_otherwise(nodes))
        unknown = _unique(
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and node.id not in module.known | bound.union(defined)
        )
        return cls(
            names=names,
            parameters=tuple(arg.arg for arg in parameters if arg.arg not in ("self", "cls")),
            annotated={
                arg.arg: ast.unparse(arg.annotation) for arg in parameters if arg.annotation
            },
            numeric=tuple(name for name in names if evidence.may_be_number(name)),
            sized=tuple(name for name in names if evidence.may_be_sized(name)),
            lists=tuple(name for name in names if name in evidence.lists),
            sets=tuple(name for name in names if name in evidence.sets),
            texts=tuple(name for name in names if name in evidence.texts),
            numbers=_unique(
                value
                for value in constants
                if isinstance(value, int | float) and not isinstance(value, bool)
            ),
            strings=_unique(value for value in constants if isinstance(value, str | bytes)),
            conditions=_texts(part for node in nodes for part in _conditions(node)),
            indexes=_texts(
                node.slice
                for node in nodes
                if isinstance(node, ast.Subscript)
                and not isinstance(node.slice, ast.Slice | ast.Tuple)
            ),
            functions=_unique(
                node.func.id
                for node in nodes
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and len(node.args) == 1
            ),
            attributes={owner: _unique(members) for owner, members in attributes.items()},
            returned=_texts(
                node.value for node in nodes if isinstance(node, ast.Return) and node.value
            ),
            values=_texts(
                node
                for node in nodes
                if isinstance(node, ast.BinOp | ast.Call | ast.Subscript | ast.Attribute)
                and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            ),
            returns=tuple(
                node for node in nodes if isinstance(node, ast.Return) and node.value is not None
            ),
            assigned=tuple(name for name in names if name in stored),
            statements=_texts(
                node
                for node in nodes
                if isinstance(node, ast.Assign | ast.AugAssign | ast.Raise)
                or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))
            ),
            places=_texts(
                node
                for node in sorted(nodes, key=lambda node: not _is_stored(node))
                if _is_place(node, evidence.texts)
            ),
            yields=any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes),
            inner=_unique(node.name for node in nodes if isinstance(node, FunctionNode)),
            uses={name: tuple(reads) for name, reads in uses.items()},
            unused=tuple(name for name in names if name in stored and name not in uses),
            hidden=_hidden(nodes),
            unknown=unknown,
            unset=_unset(nodes, {arg.arg for arg in parameters}, unknown),
            module=module,
        )


class _Evidence:
    """How variables are used."""

    def __init__(self, nodes: tuple[ast.AST, ...]) -> None:
        self.numbers, self.sized = set[str](), set[str]()
        self.lists, self.sets, self.texts = set[str](), set[str](), set[str]()
        for node in nodes:
            self._record(node)

    def record_annotations(self, definition: FunctionNode) -> None:
        """Believe what *definition* says about its parameters."""
        arguments = definition.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            text = ast.unparse(argument.annotation) if argument.annotation else ""
            if text in ("int", "float", "complex", "int | float", "float | int"):
                self.numbers.add(argument.arg)
            elif text.partition("[")[0].lower() in ("list", "str", "dict", "set", "tuple"):
                self.sized.add(argument.arg)

    def may_be_number(self, name: str) -> bool:
        return name in self.numbers or name not in self.sized

    def may_be_sized(self, name: str) -> bool:
        return name in self.sized or name not in self.numbers

    def _record(self, node: ast.AST) -> None:
        if isinstance(node, ast.BinOp):
            arithmetic = not isinstance(node.op, ast.Add | ast.Mult | ast.Mod | ast.BitOr)
            self._record_operands(node.left, node.right, numbers=arithmetic)
        elif isinstance(node, ast.Compare):
            self._record_operands(node.left, node.comparators[0], numbers=False)
        elif isinstance(node, ast.AugAssign):
            self._record_operands(node.target, node.value, numbers=False)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._record_value(target, node.value)
        elif isinstance(node, ast.NamedExpr):
            self._record_value(node.target, node.value)
        elif isinstance(node, ast.For | ast.comprehension):
            self._record_loop(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            self.sized.add(node.value.id)
        elif isinstance(node, ast.Call):
            self._record_call(node)

    def _record_operands(self, left: ast.expr, right: ast.expr, *, numbers: bool) -> None:
        for side, opposite in ((left, right), (right, left)):
            if isinstance(side, ast.Name) and (numbers or _is_number(opposite)):
                self.numbers.add(side.id)

    def _record_loop(self, node: ast.For | ast.comprehension) -> None:
        if isinstance(node.iter, ast.Name):
            self.sized.add(node.iter.id)
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        is_range = isinstance(called, ast.Name) and called.id == "range"
        if is_range and isinstance(node.target, ast.Name):
            self.numbers.add(node.target.id)

    def _record_value(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for inner_target, inner_value in zip(target.elts, value.elts, strict=False):
                self._record_value(inner_target, inner_value)
        if not isinstance(target, ast.Name):
            return
        called = value.func if isinstance(value, ast.Call) else None
        made = called.id if isinstance(called, ast.Name) else type(value).__name__
        if _is_number(value):
            self.numbers.add(target.id)
        elif made in ("List", "ListComp", "list", "sorted"):
            self.lists.add(target.id)
        elif made in ("Set", "SetComp", "set"):
            self.sets.add(target.id)
        if made in _CONTAINERS or isinstance(getattr(value, "value", None), str | bytes):
            self.sized.add(target.id)

    def _record_call(self, node: ast.Call) -> None:
        called = node.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            if called.attr in _LIST_METHODS:
                self.lists.add(called.value.id)
            if called.attr in _TEXT_METHODS:
                self.texts.add(called.value.id)
            if called.attr == "add":
                self.sets.add(called.value.id)
            if called.attr in (*_LIST_METHODS, *_TEXT_METHODS, "add", "items", "keys", "get"):
                self.sized.add(called.value.id)
        elif isinstance(called, ast.Name) and called.id in ("len", "range", "sorted", "sum"):
            names = self.numbers if called.id == "range" else self.sized
            names.update(argument.id for argument in node.args if isinstance(argument, ast.Name))


def is_value(node: ast.AST) -> bool:
    """Whether *node* is an expression that is read."""
    if isinstance(node, ast.Slice | ast.Starred):
        return False
    return isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _is_number(node: ast.expr) -> bool:
    """Whether *node* certainly is a number."""
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _NUMERIC_CALLS
    )


def _bound_otherwise(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that something else than an assignment binds in a function."""
    for node in nodes:
        if isinstance(node, FunctionNode | ast.ClassDef | ast.ExceptHandler):
            yield node.name or ""
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.MatchAs | ast.MatchStar):
            yield node.name or ""
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names


def _hidden(nodes: tuple[ast.AST, ...]) -> frozenset[str]:
    """Return the variables that statements cannot read: of lambda functions and comprehensions."""
    inner, outer = set[str](), set[str]()
    targets = {
        id(part)
        for node in nodes
        if isinstance(node, ast.comprehension)
        for part in ast.walk(node.target)
    }
    arguments = {
        id(part) for node in nodes if isinstance(node, ast.Lambda) for part in ast.walk(node.args)
    }
    for node in nodes:
        if isinstance(node, ast.arg):
            (inner if id(node) in arguments else outer).add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            (inner if id(node) in targets else outer).add(node.id)
    return frozenset(inner - outer)


def _unset(
    nodes: tuple[ast.AST, ...], parameters: set[str], unknown: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return usual start values of names that the function changes but never assigns."""
    changed = {
        id(node.target): node.target.id
        for node in nodes
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    assigned = parameters | {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and _is_stored(node) and id(node) not in changed
    }
    declared = {
        name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
    }
    start_values: dict[str, tuple[str, ...]] = {
        name: ("0", "1", "[]", "''") for name in changed.values() if name not in assigned | declared
    }
    for node in nodes:
        owner = node.value if isinstance(node, ast.Attribute | ast.Subscript) else None
        if isinstance(owner, ast.Name) and owner.id in unknown:
            if isinstance(node, ast.Subscript) and _is_stored(node):
                start_values[owner.id] = ("{}", "[]")
            elif isinstance(node, ast.Attribute) and node.attr in ("append", "add"):
                start_values[owner.id] = ("[]",) if node.attr == "append" else ("set()",)
    return start_values


def _is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _is_place(node: ast.AST, texts: set[str]) -> bool:
    """Whether *node* is a subscript or attribute that an assignment can set."""
    if isinstance(node, ast.Attribute):
        return _is_stored(node)
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Slice | ast.Tuple):
        return False
    if isinstance(node.slice, ast.Constant | ast.UnaryOp) and not _is_stored(node):
        return False
    return not isinstance(node.value, ast.Name) or node.value.id not in texts


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the conditions that *node* tests, split at ``and``, ``or`` and ``not``."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _clauses(node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _clauses(test)
    elif isinstance(node, ast.Return | ast.Assign) and isinstance(
        node.value, ast.BoolOp | ast.Compare
    ):
        yield from _clauses(node.value)


def _clauses(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _clauses(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _clauses(test.operand)
    elif not isinstance(test, ast.Constant):
        yield test


def _variables(nodes: tuple[ast.AST, ...]) -> tuple[str, ...]:
    """Return parameters and assigned names of the function, most used first."""
    owned = {node.arg for node in nodes if isinstance(node, ast.arg)}
    uses: Counter[str] = Counter()
    for node in nodes:
        if isinstance(node, ast.Name):
            uses[node.id] += 1
            if isinstance(node.ctx, ast.Store):
                owned.add(node.id)
    return tuple(sorted(owned, key=lambda name: (-uses[name], name)))


def _texts(nodes: Iterable[ast.AST]) -> tuple[str, ...]:
    """Return the sources of *nodes*, each once, without those that are long."""
    return tuple(text for text in _unique(map(ast.unparse, nodes)) if len(text) <= MAX_TEXT)


def _unique(items: Iterable[_Item]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(items))
