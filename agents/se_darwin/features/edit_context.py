"""Context features of an edit: how the function uses the removed and the inserted token."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import inf, log1p

from agents.se_darwin.edits import Edit, EditSpace

# "old" is the token that the edit removes, "new" the one that it inserts. Names say what is
# counted; counts of occurrences and of lines are log(1 + count); what is or is not so is 1 or 0.
TOKEN_NUMBERS = (
    "old_elsewhere",  # occurrences in the function, that of the edit included
    "new_elsewhere",  # occurrences in the function
    "old_fits",  # whether the function uses it in the same way at another place; see `_usage`
    "new_fits",
)
NAME_NUMBERS = (  # of the first variables of both tokens; "the line" is that of the edit
    "old_reads",  # places that read it
    "new_reads",
    "new_is_unread",  # whether no place reads it
    "new_value_is_unread",  # whether nothing reads the value that it has before the line
    "old_assigned_before",  # whether it has a value before the line, as all parameters do
    "new_assigned_before",
    "old_age",  # lines since its last assignment; 0 without one
    "new_age",
    "old_is_parameter",
    "new_is_parameter",
    "old_repeated_in_statement",  # whether the line reads it more than once
    "new_repeated_in_statement",  # whether the line reads it already
    "new_is_assigned_there",  # whether the line sets it
    "name_similarity",  # see `_similarity`
)
CONTEXT_NUMBERS = TOKEN_NUMBERS + NAME_NUMBERS
_NO_NAME = (0.0,) * len(NAME_NUMBERS)
_TOKEN_WIDTH = 20  # characters, as in the tokens of edits


class EditContext:
    """Index of one function's tokens, how it uses them, and its variables.

    Args:
        space: The program and its edits.
    """

    def __init__(self, space: EditSpace) -> None:
        self._nodes = space.nodes
        self._usages: dict[int, str] = {}
        self._tokens: Counter[str] = Counter()
        self._used: Counter[tuple[str, str]] = Counter()
        self._reads: defaultdict[str, list[int]] = defaultdict(list)
        self._assigned: defaultdict[str, list[int]] = defaultdict(list)
        self._parameters = {node.arg for node in space.nodes if isinstance(node, ast.arg)}
        for parent in space.nodes:
            for role, value in ast.iter_fields(parent):
                if isinstance(value, ast.AST):
                    self._record(parent, role, value)
                elif isinstance(value, list):
                    for position, item in enumerate(value):
                        if isinstance(item, ast.AST):
                            self._record(parent, f"{role} {position}", item)
        for lines in (*self._reads.values(), *self._assigned.values()):
            lines.sort()

    def describe(self, edit: Edit, names: Sequence[str]) -> tuple[float, ...]:
        """Return the `CONTEXT_NUMBERS` of *edit*.

        Args:
            edit: The edit.
            names: Variables that the new token contains; the first counts. Without any, the
                `NAME_NUMBERS` are 0.
        """
        old, new = edit.old, edit.new
        usage = self._usages.get(id(self._nodes[edit.node]), "")
        tokens = (
            log1p(self._tokens[old]),
            log1p(self._tokens[new]),
            float(self._used[usage, old] > 1),
            float(self._used[usage, new] > 0),
        )
        return tokens + (self._describe_names(old, names[0], edit.line) if names else _NO_NAME)

    def _describe_names(self, old: str, new: str, line: int) -> tuple[float, ...]:
        old_reads, new_reads = self._reads[old], self._reads[new]
        old_set, new_set = self._last_assignment(old, line), self._last_assignment(new, line)
        return (
            log1p(len(old_reads)),
            log1p(len(new_reads)),
            float(not new_reads),
            float(new_set is not None and self._is_dead(new, new_set)),
            float(old_set is not None),
            float(new_set is not None),
            log1p(line - old_set) if old_set is not None else 0.0,
            log1p(line - new_set) if new_set is not None else 0.0,
            float(old in self._parameters),
            float(new in self._parameters),
            float(old_reads.count(line) > 1),
            float(line in new_reads),
            float(line in self._assigned[new]),
            _similarity(old, new),
        )

    def _last_assignment(self, name: str, line: int) -> int | None:
        """Return the last line before *line* that sets *name*; 1 for a parameter; else None."""
        lines = self._assigned[name]
        before = bisect_left(lines, line)
        if before:
            return lines[before - 1]
        return 1 if name in self._parameters else None

    def _is_dead(self, name: str, line: int) -> bool:
        """Whether nothing reads *name* between its assignment on *line* and the next."""
        assigned, reads = self._assigned[name], self._reads[name]
        following = bisect_left(assigned, line + 1)
        end = assigned[following] if following < len(assigned) else inf
        first = bisect_left(reads, line + 1)
        return first == len(reads) or reads[first] > end

    def _record(self, parent: ast.AST, role: str, node: ast.AST) -> None:
        if not isinstance(node, ast.expr | ast.AugAssign):
            return
        usage = self._usages[id(node)] = _usage(parent, role, node)
        token = _token(node)
        if token is not None:
            self._tokens[token] += 1
            self._used[usage, token] += 1
        if isinstance(node, ast.Name):
            lines = self._reads if isinstance(node.ctx, ast.Load) else self._assigned
            lines[node.id].append(node.lineno)


def _token(node: ast.AST) -> str | None:
    """Return the token of *node* in the form of `Edit.old`, or None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant):
        return repr(node.value)[:_TOKEN_WIDTH]
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        return type(node.op).__name__
    if isinstance(node, ast.Compare):
        return type(node.ops[0]).__name__
    return None


def _usage(parent: ast.AST, role: str, node: ast.AST) -> str:
    """Describe how *parent* uses the value of *node*: ``.upper``, ``len args 0``, ``Lt 0``."""
    if isinstance(parent, ast.Attribute):
        return f".{parent.attr}"
    if isinstance(parent, ast.Call):
        called = parent.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return "called" if node is called else f"{name} {role}"
    if isinstance(parent, ast.Compare):
        opposite = parent.left if node is not parent.left else parent.comparators[0]
        return f"{type(parent.ops[0]).__name__} {_token(opposite)}"
    if isinstance(parent, ast.BinOp):
        return f"{type(parent.op).__name__} {role}"
    return f"{type(parent).__name__} {role}"


def _similarity(first: str, second: str) -> float:
    """Return the Dice coefficient of the names' letter pairs, in [0, 1]."""
    first_pairs, second_pairs = _pairs(first), _pairs(second)
    return 2 * len(first_pairs & second_pairs) / max(1, len(first_pairs) + len(second_pairs))


def _pairs(name: str) -> set[str]:
    return {name[index : index + 2] for index in range(len(name))}
