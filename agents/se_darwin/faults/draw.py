"""Draw faults of a function: the kind first, then the place."""

from __future__ import annotations

import ast
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agents.se_darwin.edits.edit import read, write
from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.faults.expression_faults import EXPRESSION_FAULTS
from agents.se_darwin.faults.place import Change, Place
from agents.se_darwin.faults.statement_faults import STATEMENT_FAULTS

FAULT_KINDS = (*EXPRESSION_FAULTS, *STATEMENT_FAULTS)
_RULES = EXPRESSION_FAULTS | STATEMENT_FAULTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A program with a fault.

    Attributes:
        kind: One of `FAULT_KINDS`.
        source: The program, in normal form.
    """

    kind: str
    source: str


def draw_faults(source: str, function: str, rng: Random) -> Iterator[Fault]:
    """Yield each fault that can be made in *function* once, in random order.

    The kind is drawn first, uniformly: wrong numbers and variables outnumber the rest.

    Args:
        source: A program.
        function: Name of the function to break.
        rng: Random generator; the same state gives the same faults.

    Raises:
        ValueError: *source* does not define *function*.
    """
    tree = ast.parse(source)
    normal = ast.unparse(tree)
    left: dict[str, list[Change]] = defaultdict(list)
    for place in _places(definition_of(tree, function)):
        for kind, rule in _RULES.items():
            left[kind] += rule(place)
    seen = {normal}
    while kinds := sorted(kind for kind, changes in left.items() if changes):
        kind = rng.choice(kinds)
        change = left[kind].pop(rng.randrange(len(left[kind])))
        broken = _apply(tree, change)
        if broken is not None and broken not in seen:
            seen.add(broken)
            yield Fault(kind=kind, source=broken)


def _apply(tree: ast.Module, change: Change) -> str | None:
    """Return the program with *change*, in normal form; None if it is not valid Python."""
    before = [(slot, read(slot)) for slot, _ in change]
    try:
        for slot, value in change:
            write(slot, value)
        made = ast.unparse(ast.fix_missing_locations(tree))
    finally:
        for slot, value in reversed(before):
            write(slot, value)
    try:
        with warnings.catch_warnings(action="ignore"):  # of ``1[0]``, which a fault may be
            compile(made, "<fault>", "exec", dont_inherit=True)
        return ast.unparse(ast.parse(made))
    except (SyntaxError, ValueError):
        return None


def _places(definition: FunctionNode) -> Iterator[Place]:
    names, calls = _variables(definition), _calls(definition)
    waiting: list[tuple[ast.AST, Place | None]] = [(definition, None)]
    while waiting:
        parent, outer = waiting.pop(0)
        for role, value in ast.iter_fields(parent):
            if role in ("args", "decorator_list", "returns") and parent is definition:
                continue
            items = value if isinstance(value, list) else [value]
            for index, item in enumerate(items):
                if isinstance(item, ast.AST):
                    place = Place(
                        node=item,
                        parent=parent,
                        role=role,
                        index=index if isinstance(value, list) else None,
                        outer=outer,
                        names=names,
                        calls=calls,
                    )
                    yield place
                    waiting.append((item, place))


def _variables(definition: FunctionNode) -> tuple[str, ...]:
    """Return parameters and assigned names, the most used first."""
    owned = {node.arg for node in ast.walk(definition) if isinstance(node, ast.arg)}
    uses: Counter[str] = Counter()
    for node in ast.walk(definition):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
            if isinstance(node.ctx, ast.Store):
                owned.add(node.id)
    return tuple(sorted(owned, key=lambda name: (-uses[name], name)))


def _calls(definition: FunctionNode) -> tuple[str, ...]:
    names = [
        node.func.id
        for node in ast.walk(definition)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return tuple(dict.fromkeys(names))
