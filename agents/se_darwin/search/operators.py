"""The three search operators: revision, recombination, refinement."""

from __future__ import annotations

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


def recombine(first: frozenset[Edit], second: frozenset[Edit]) -> list[Step]:
    """Return the unions of both sets; where both edit a node, one union takes each one's edit."""
    merged: list[Step] = []
    for own, other in ((first, second), (second, first)):
        nodes = {edit.node for edit in own}
        edits = own | {edit for edit in other if edit.node not in nodes}
        if edits not in (first, second, *(step.edits for step in merged)):
            merged.append(Step(operator="recombination", changed=edits - first, edits=edits))
    return merged


def refine(edits: frozenset[Edit]) -> list[Step]:
    """Return a step for each edit that can be removed: the first round of delta debugging."""
    ordered = sorted(edits, key=lambda edit: (edit.node, edit.kind, edit.new))
    if len(ordered) < 2:
        return []
    return [
        Step(operator="refinement", changed=frozenset({edit}), edits=edits - {edit})
        for edit in ordered
    ]
