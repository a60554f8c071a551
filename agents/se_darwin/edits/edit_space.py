"""All single edits of a program, and the programs that sets of edits make."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence

from agents.se_darwin.edits.block_rules import BLOCK_RULES
from agents.se_darwin.edits.condition_rules import CONDITION_RULES
from agents.se_darwin.edits.edit import Assignment, Block, Edit, Site, read, write
from agents.se_darwin.edits.exchange_rules import EXCHANGE_RULES
from agents.se_darwin.edits.expression_rules import EXPRESSION_RULES
from agents.se_darwin.edits.format_rules import FORMAT_RULES
from agents.se_darwin.edits.growth_rules import GROWTH_RULES
from agents.se_darwin.edits.guard_rules import GUARD_RULES
from agents.se_darwin.edits.ingredient_rules import INGREDIENT_RULES
from agents.se_darwin.edits.name_rules import NAME_RULES
from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.edits.parameter_rules import PARAMETER_RULES
from agents.se_darwin.edits.program_text import ProgramText, flattened
from agents.se_darwin.edits.regroup_rules import REGROUP_RULES
from agents.se_darwin.edits.scope import Scope
from agents.se_darwin.edits.shrink_rules import SHRINK_RULES
from agents.se_darwin.edits.signature_rules import SIGNATURE_RULES
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
    "operand_removed",
    "clause_removed",
    "call_removed",
    "index_removed",
    "argument_removed",
    "call_added",
    "method_added",
    "index_added",
    "bound_added",
    "term_added",
    "clause_added",
    "filter_added",
    "argument_added",
    "value_replaced",
    "condition_replaced",
    "container",
    "target",
    "attribute",
    "statement_removed",
    "branch_unwrapped",
    "branch_kind",
    "statement_moved",
    "statement_copied",
    "exit_added",
    "else_added",
    "update_added",
    "guard_added",
    "raise_added",
    "parameter_normalised",
    "default_replaced",
    "regrouped",
    "call_moved",
    "rounding",
    "lookup",
    "in_place",
    "exception",
    "statement_guarded",
    "return_kind",
)
_RULES = (
    EXPRESSION_RULES
    + STATEMENT_RULES
    + SHRINK_RULES
    + GROWTH_RULES
    + CONDITION_RULES
    + INGREDIENT_RULES
    + NAME_RULES
    + BLOCK_RULES
    + GUARD_RULES
    + PARAMETER_RULES
    + REGROUP_RULES
    + EXCHANGE_RULES
    + FORMAT_RULES
    + SIGNATURE_RULES
)
_MAX_ANCESTORS = 4


class EditSpace:
    """The edits of one function in one program.

    A candidate is a *set* of edits, all addressed in this one tree; of those at one node all but
    one may put statements beside it. So
    edits of different lineages can be merged, and single edits removed.

    Args:
        source: Source of a program that defines *function*.
        function: Name of a function at the top level of the program, or ``Class.method``.
        defined: Names that the program can read although neither it nor Python defines them.

    Attributes:
        source: *source* in normal form.
        function: Name of the function.
        edits: All single edits, in order of node, kind and contents.

    Raises:
        ValueError: *source* does not parse or does not define the function.
    """

    def __init__(self, source: str, function: str, *, defined: Collection[str] = ()) -> None:
        try:
            text = ast.unparse(ast.parse(source))
        except SyntaxError as error:
            raise ValueError(f"the program is not valid Python: {error}") from None
        self.source = ast.unparse(ast.parse(text))
        self._tree = ast.parse(self.source)  # for the line numbers
        self.function = function
        self.definition = definition_of(self._tree, function)
        self.nodes = tuple(ast.walk(self.definition))
        self.scope = Scope.of(self._tree, self.definition, self.nodes, defined)
        self.edits = tuple(self._enumerate())
        decorators = (decorator.lineno for decorator in self.definition.decorator_list)
        first = min((self.definition.lineno, *decorators))
        lines = self.source.split("\n")
        self._before, self._after = lines[: first - 1], lines[self.lines.stop - 1 :]
        shell: ast.stmt = self.definition
        for _ in function.split(".")[1:]:  # so that `ast.unparse` indents it
            shell = ast.ClassDef(name="_", bases=[], keywords=[], body=[shell], decorator_list=[])
        self._shell = shell
        line_count = len(lines) - len(self._before) - len(self._after)
        self._text = ProgramText(self.source, self.definition)
        self._shell_lines = len(ast.unparse(shell).split("\n")) - line_count

    @property
    def lines(self) -> range:
        """Lines of the function in `source`."""
        last = self.definition.end_lineno or self.definition.lineno
        return range(self.definition.lineno, last + 1)

    def program(self, edits: Iterable[Edit]) -> str:
        """Return the program with *edits* applied, in normal form.

        Raises:
            ValueError: Two edits replace the same node.
        """
        # inner nodes before outer ones; what goes beside a node after what replaces it
        ordered = sorted(edits, key=lambda edit: (-edit.node, edit.inserts, edit.kind, edit.new))
        replaced = [edit.node for edit in ordered if not edit.inserts]
        if len(set(replaced)) != len(replaced):
            raise ValueError("two edits replace the same node; keep one of them")
        undone: list[Assignment] = []
        made: list[Assignment] = []
        try:
            for edit in ordered:
                assignments = edit.assign()
                undone += [(slot, read(slot)) for slot, _ in assignments]
                for slot, value in assignments:
                    write(slot, value)
                made += assignments
            text = self._text.with_changes(made, undone)
            if text is not None:
                return text
            if any(isinstance(value, Block) for _, value in made):
                for slot, block in flattened(self.definition):
                    undone.append((slot, read(slot)))
                    write(slot, block)
            definition_lines = ast.unparse(self._shell).split("\n")[self._shell_lines :]
            return "\n".join([*self._before, *definition_lines, *self._after])
        finally:
            for slot, value in reversed(undone):
                write(slot, value)

    def _enumerate(self) -> Iterator[Edit]:
        numbers = {id(node): number for number, node in enumerate(self.nodes)}
        parents = {id(child): node for node in self.nodes for child in ast.iter_child_nodes(node)}
        inert = _inert(self.nodes)
        seen: set[Edit] = set()
        for node in self.nodes:
            for role, index, child in _children(node):
                if id(child) in inert:
                    continue
                ancestors = tuple(_ancestors(child, parents))
                site = Site(
                    node=child,
                    parent=node,
                    role=role,
                    index=index,
                    ancestors=ancestors,
                    scope=self.scope,
                )
                types = (
                    type(ancestor).__name__.removeprefix("Async")
                    for ancestor in ancestors[:_MAX_ANCESTORS]
                )
                path = (role, *types)
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
                            inserts=proposal.inserts,
                        )
                        if edit not in seen:
                            seen.add(edit)
                            yield edit


def definition_of(tree: ast.Module, function: str) -> FunctionNode:
    """Return the last definition of *function*, ``function`` or ``Class.method``.

    Raises:
        ValueError: The program does not define it there.
    """
    body, definition = tree.body, None
    *classes, name = function.split(".")
    for owner in classes:
        inner = [node for node in body if isinstance(node, ast.ClassDef) and node.name == owner]
        body = inner[-1].body if inner else []
    for node in body:
        if isinstance(node, FunctionNode) and node.name == name and not _is_setter(node):
            definition = node
    if definition is None:
        place = f"in the class {'.'.join(classes)}" if classes else "at its top level"
        raise ValueError(f"the program defines no function {name!r} {place}")
    return definition


def _is_setter(node: FunctionNode) -> bool:
    """Whether *node* is the setter or deleter of the property that it names."""
    marks = (f"{node.name}.setter", f"{node.name}.deleter")
    return any(ast.unparse(decorator) in marks for decorator in node.decorator_list)


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for role, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield role, None, value
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield role, index, item


def _ancestors(node: ast.AST, parents: dict[int, ast.AST]) -> Iterator[ast.AST]:
    while id(node) in parents:
        node = parents[id(node)]
        yield node


def _inert(nodes: Sequence[ast.AST]) -> set[int]:
    """Return the ids of nodes that have no effect: annotations and docstrings."""
    roots: list[ast.AST] = []
    for node in nodes:
        for role in ("annotation", "returns"):
            if isinstance(getattr(node, role, None), ast.AST):
                roots.append(getattr(node, role))
        if isinstance(node, FunctionNode) and ast.get_docstring(node, clean=False) is not None:
            roots.append(node.body[0])
    return {id(node) for root in roots for node in ast.walk(root)}
