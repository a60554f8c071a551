"""All single edits of a program, and the programs that sets of edits make."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from agents.se_darwin.edits.edit import Assignment, Edit, Site, read, write
from agents.se_darwin.edits.expression_rules import EXPRESSION_RULES
from agents.se_darwin.edits.statement_rules import STATEMENT_RULES

EDIT_KINDS = (
    "comparison",
    "arithmetic",
    "operand_order",
    "boolean",
    "negation",
    "sign",
    "offset",
    "constant",
    "string",
    "variable",
    "method",
    "function",
    "argument_order",
    "element_order",
    "slice",
    "loop_exit",
    "assignment",
    "statement_order",
    "return_value",
)
_RULES = EXPRESSION_RULES + STATEMENT_RULES
_MAX_ANCESTORS = 4


class EditSpace:
    """The edits of one function in one program.

    A candidate is a *set* of edits, all addressed in this one tree, at most one per node. So
    edits of different lineages can be merged, and single edits removed.

    Args:
        source: Source of a program that defines *function*.
        function: Name of a function at the top level of the program, or ``Class.method``.

    Attributes:
        source: *source* in normal form.
        function: Name of the function.
        edits: All single edits, in order of node, kind and contents.

    Raises:
        ValueError: *source* does not parse or does not define the function.
    """

    def __init__(self, source: str, function: str) -> None:
        try:
            self._tree = ast.parse(ast.unparse(ast.parse(source)))
        except SyntaxError as error:
            raise ValueError(f"the program is not valid Python: {error}") from None
        self.source = ast.unparse(self._tree)
        self.function = function
        self.definition = definition_of(self._tree, function)
        self.names = _variables(self.definition)
        self.nodes = tuple(ast.walk(self.definition))
        self.edits = tuple(self._enumerate())

    def program(self, edits: Iterable[Edit]) -> str:
        """Return the program with *edits* applied, in normal form.

        Raises:
            ValueError: Two edits change the same node.
        """
        ordered = sorted(edits, key=lambda edit: -edit.node)  # inner nodes before outer ones
        if len({edit.node for edit in ordered}) != len(ordered):
            raise ValueError("two edits change the same node; keep one of them")
        undone: list[Assignment] = []
        try:
            for edit in ordered:
                assignments = edit.assign()
                undone += [(slot, read(slot)) for slot, _ in assignments]
                for slot, value in assignments:
                    write(slot, value)
            return ast.unparse(self._tree)
        finally:
            for slot, value in reversed(undone):
                write(slot, value)

    def _enumerate(self) -> Iterator[Edit]:
        numbers = {id(node): number for number, node in enumerate(self.nodes)}
        parents = {id(child): node for node in self.nodes for child in ast.iter_child_nodes(node)}
        strings = _strings(self.nodes)
        returns = tuple(
            node for node in self.nodes if isinstance(node, ast.Return) and node.value is not None
        )
        seen: set[Edit] = set()
        for node in self.nodes:
            for role, index, child in _children(node):
                site = Site(
                    node=child,
                    parent=node,
                    role=role,
                    index=index,
                    names=self.names,
                    strings=strings,
                    returns=returns,
                )
                path = (role, *_ancestors(child, parents))
                for rule in _RULES:
                    for proposal in rule(site):
                        edit = Edit(
                            node=numbers[id(child)],
                            kind=proposal.kind,
                            old=proposal.old,
                            new=proposal.new,
                            line=getattr(child, "lineno", self.definition.lineno),
                            assign=proposal.assign,
                            path=path,
                        )
                        if edit not in seen:
                            seen.add(edit)
                            yield edit


def definition_of(tree: ast.Module, function: str) -> ast.FunctionDef:
    """Return the last definition of *function*, ``function`` or ``Class.method``.

    Raises:
        ValueError: The program does not define it there.
    """
    body, found = tree.body, None
    *classes, name = function.split(".")
    for owner in classes:
        inner = [each for each in body if isinstance(each, ast.ClassDef) and each.name == owner]
        body = inner[-1].body if inner else []
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == name and not _is_setter(node):
            found = node
    if found is None:
        place = f"in the class {'.'.join(classes)}" if classes else "at its top level"
        raise ValueError(f"the program defines no function {name!r} {place}")
    return found


def _is_setter(node: ast.FunctionDef) -> bool:
    """Whether *node* is the setter or deleter of the property that it names."""
    marks = (f"{node.name}.setter", f"{node.name}.deleter")
    return any(ast.unparse(each) in marks for each in node.decorator_list)


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for role, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield role, None, value
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield role, index, item


def _ancestors(node: ast.AST, parents: dict[int, ast.AST]) -> Sequence[str]:
    found: list[str] = []
    while id(node) in parents and len(found) < _MAX_ANCESTORS:
        node = parents[id(node)]
        found.append(type(node).__name__)
    return found


def _variables(definition: ast.FunctionDef) -> tuple[str, ...]:
    """Return parameters and assigned names of the function, most used first."""
    owned = {node.arg for node in ast.walk(definition) if isinstance(node, ast.arg)}
    uses: Counter[str] = Counter()
    for node in ast.walk(definition):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
            if isinstance(node.ctx, ast.Store):
                owned.add(node.id)
    return tuple(sorted(owned, key=lambda name: (-uses[name], name)))


def _strings(nodes: Sequence[ast.AST]) -> tuple[str | bytes, ...]:
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    found = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str | bytes)
        and id(node) not in parts
    ]
    return tuple(dict.fromkeys(found))
