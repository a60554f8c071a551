"""The three search operators: revision, recombination, refinement."""

from __future__ import annotations

from collections.abc import Iterable

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.features import Step


def revise(space: EditSpace, edits: frozenset[Edit]) -> list[Step]:
    """Return a step for each additional edit: at another node, or one that goes with *edits*."""
    at_node: dict[int, list[Edit]] = {}
    for edit in edits:
        at_node.setdefault(edit.node, []).append(edit)
    return [
        Step(operator="revision", changed=frozenset({edit}), edits=edits | {edit})
        for edit in space.edits
        if edit not in edits and edit.goes_with(at_node.get(edit.node, ()))
    ]


def recombine(first: frozenset[Edit], second: frozenset[Edit]) -> tuple[Edit, ...]:
    """Return the edits of *second* that can be added to *first*: those that go with all of it."""
    return _ordered(edit for edit in second if edit not in first and edit.goes_with(first))


def refine(edits: frozenset[Edit]) -> list[Step]:
    """Return a step for each edit that can be removed: the first round of delta debugging."""
    if len(edits) < 2:
        return []
    return [
        Step(operator="refinement", changed=frozenset({edit}), edits=edits - {edit})
        for edit in _ordered(edits)
    ]


def _ordered(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    return tuple(sorted(edits, key=lambda edit: (edit.node, edit.kind, edit.new)))
