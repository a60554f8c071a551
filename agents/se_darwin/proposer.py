"""Where candidates come from."""

from __future__ import annotations

from random import Random
from typing import Protocol

from agents.se_darwin.archive import Archive
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.evaluation import Evaluation
from agents.se_darwin.features import Step
from agents.se_darwin.operators import recombine, refine, revise

RECOMBINATION_CHANCE = 0.2
REFINEMENT_CHANCE = 0.1


class Proposer(Protocol):
    """Thinks of candidates; ranking, running and judging them are not its business.

    A candidate is a set of edits of the program under repair. Whoever writes whole programs,
    such as a language model, makes an `Edit` that puts another definition in the place of the
    function's.
    """

    def propose(self, parent: Evaluation, archive: Archive, rng: Random) -> list[Step]:
        """Candidates made from *parent* that *archive* has not seen; all of one operator."""


class EditProposer:
    """Small edits of the syntax tree, by revision, recombination and refinement.

    Args:
        space: The program under repair and its edits.
    """

    def __init__(self, space: EditSpace) -> None:
        self._space = space
        self._revisions: dict[Evaluation, list[Step]] = {}

    def propose(self, parent: Evaluation, archive: Archive, rng: Random) -> list[Step]:
        """All untried candidates of an operator drawn at random; revisions where it has none."""
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
