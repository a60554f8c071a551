"""Which repairs of people the agent's edits can make, and what each kind of edit costs."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agents.se_darwin.edits import EDIT_KINDS, Edit, EditSpace
from benchmarks.se_darwin.mining.history import FunctionChange
from benchmarks.se_darwin.mining.regions import Comparison, Region

_MAX_REGIONS = 3
_LEVELS = 3  # of the syntax tree: a changed place, and what contains it
EXCHANGES = EDIT_KINDS[: EDIT_KINDS.index("return_value") + 1]
"""The kinds that exchange what is there for something similar."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """What the agent's edits make of one change.

    Attributes:
        places: For each place that changed, the kinds that make the change there by one edit.
        whole: Kinds that make the whole change by one edit.
        space: Number of candidates of each kind.
    """

    places: tuple[frozenset[str], ...]
    whole: frozenset[str]
    space: Counter[str]

    def is_made_by(self, kinds: Iterable[str]) -> bool:
        """Whether edits of *kinds* make the change, one for each place or one in all."""
        wanted = frozenset(kinds)
        return bool(self.whole & wanted) or all(place & wanted for place in self.places)


def reach(change: FunctionChange) -> Reach | None:
    """Try the agent's edits on *change*; None if it changes nothing or more than three places."""
    space = EditSpace(change.before, change.function)
    definition = ast.parse(change.after).body[0]
    regions = Comparison().regions(space.definition, definition)
    if not 1 <= len(regions) <= _MAX_REGIONS:
        return None
    near = [_edits_near(space, region) for region in regions]
    places = tuple(
        _makers(space, edits, _with_region(space, region))
        for edits, region in zip(near, regions, strict=True)
    )
    whole: frozenset[str] = frozenset()
    if len(regions) > 1:
        together = dict.fromkeys(edit for edits in near for edit in edits)
        whole = _makers(space, list(together), ast.unparse(ast.parse(change.after)))
    kinds = Counter(edit.kind for edit in space.edits)
    return Reach(places=places, whole=whole, space=kinds)


def _makers(space: EditSpace, edits: Sequence[Edit], wanted: str) -> frozenset[str]:
    return frozenset(edit.kind for edit in edits if space.program([edit]) == wanted)


def _with_region(space: EditSpace, region: Region) -> str:
    """Return the old program with one changed place, in normal form."""
    now = getattr(region.owner, region.role)
    changed = region.new
    if isinstance(now, list) and region.index is not None:
        put = [] if region.new is None else [region.new]
        end = region.index + (region.action != "inserted")
        changed = [*now[: region.index], *put, *now[end:]]
        if not changed and region.role == "body":
            changed = [ast.Pass()]
    setattr(region.owner, region.role, changed)
    try:
        return ast.unparse(space.definition)
    finally:
        setattr(region.owner, region.role, now)


def _edits_near(space: EditSpace, region: Region) -> list[Edit]:
    """Return the edits inside a changed place, of the statements beside it and those around it."""
    numbers = {id(node): number for number, node in enumerate(space.nodes)}
    parents = {id(child): node for node in space.nodes for child in ast.iter_child_nodes(node)}
    near: list[ast.AST] = [region.owner]
    while len(near) < _LEVELS and id(near[-1]) in parents:
        near.append(parents[id(near[-1])])
    if isinstance(region.old, ast.AST):
        near += ast.walk(region.old)
    block = getattr(region.owner, region.role)
    if isinstance(block, list) and block:
        index = region.index or 0
        near += [block[0], block[-1], *block[max(index - 1, 0) : index + 2]]
    wanted = {numbers[id(node)] for node in near if id(node) in numbers}
    return [edit for edit in space.edits if edit.node in wanted]
