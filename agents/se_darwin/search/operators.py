"""The three search operators: revision, recombination, refinement."""

from __future__ import annotations

from collections.abc import Iterable

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.features import Step


def revise(space: EditSpace, edits: frozenset[Edit]) -> list[Step]:
    """Return a step for each additional edit at a node that *edits* do not touch."""
    touched = {edit.node for edit in edits}
    return [
        Step(operator="revision", changed=frozenset({edit}), edits=edits | {edit})
        for edit in space.edits
        if edit.node not in touched
    ]


def recombine(first: frozenset[Edit], second: frozenset[Edit]) -> tuple[Edit, ...]:
    """Return the edits of *second* that can be added to *first*: those at other nodes."""
    touched = {edit.node for edit in first}
    return _ordered(edit for edit in second if edit.node not in touched)


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
