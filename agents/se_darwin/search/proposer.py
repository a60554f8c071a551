"""Proposers: sources of candidates."""

from __future__ import annotations

from random import Random
from typing import Protocol

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.features import Step
from agents.se_darwin.search.archive import Archive
from agents.se_darwin.search.operators import recombine, refine, revise
from agents.se_darwin.tasks.evaluation import Evaluation

RECOMBINATION_CHANCE = 0.2
REFINEMENT_CHANCE = 0.1


class Proposer(Protocol):
    """Proposes candidates; others rank, run and evaluate them.

    A candidate is a set of edits of the program under repair. A proposer that writes whole
    programs, such as a language model, makes an `Edit` that replaces the function's definition.
    """

    def propose(self, parent: Evaluation, archive: Archive, rng: Random) -> list[Step]:
        """Return untried candidates made from *parent*, all by one operator."""


class EditProposer:
    """Proposes small edits of the syntax tree, by revision, recombination and refinement.

    Args:
        space: The program under repair and its edits.
    """

    def __init__(self, space: EditSpace) -> None:
        self._space = space
        self._revisions: dict[Evaluation, list[Step]] = {}

    def propose(self, parent: Evaluation, archive: Archive, rng: Random) -> list[Step]:
        """Return all untried candidates of a random operator; revisions if it has none."""
        draw = rng.random()
        steps: list[Step] = []
        if draw < RECOMBINATION_CHANCE:
            mate = archive.choose_mate(rng, parent)
            steps = recombine(parent.edits, mate.edits) if mate else []
        elif draw < RECOMBINATION_CHANCE + REFINEMENT_CHANCE:
            steps = refine(parent.edits)
        return _untried(steps, archive) or _untried(self._revise(parent), archive)

    def _revise(self, parent: Evaluation) -> list[Step]:
        if parent not in self._revisions:
            self._revisions[parent] = revise(self._space, parent.edits)
        return self._revisions[parent]


def _untried(steps: list[Step], archive: Archive) -> list[Step]:
    return [step for step in steps if archive.is_untried(step.edits)]
