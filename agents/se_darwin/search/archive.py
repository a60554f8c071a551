"""Archive of programs to build on, with the parent selection of the Darwin Gödel machine."""

from __future__ import annotations

from collections import Counter
from math import exp
from random import Random

from agents.se_darwin.edits import Edit
from agents.se_darwin.tasks.evaluation import Evaluation

NEUTRAL_SHARE = 0.1


class Archive:
    """The root, the candidates that are not worse than their parent, and all edits tried.

    Neutral candidates are kept, because a repair of one of two faults may change no test's
    outcome. They are more than half of all candidates. Members that pass the same tests as an
    earlier member therefore share a fraction of its weight; with full weights they would crowd
    out the candidates that make progress.

    Args:
        root: The program under repair.

    Attributes:
        members: Members in order of arrival, the root first.
    """

    def __init__(self, root: Evaluation) -> None:
        self.members = [root]
        self._children: Counter[Evaluation] = Counter()
        self._same_results = {root.passed: [root]}
        self._exhausted: set[Evaluation] = set()
        self._sources = {root.source}
        self._tried = {root.edits}

    def __len__(self) -> int:
        return len(self.members)

    @property
    def best(self) -> Evaluation:
        """The member with the highest score; of several, the one with the fewest edits."""
        return max(self.members, key=lambda member: (member.score, -len(member.edits)))

    def is_untried(self, edits: frozenset[Edit]) -> bool:
        """Whether no registered candidate has exactly these edits."""
        return edits not in self._tried

    def register(self, edits: frozenset[Edit], source: str) -> bool:
        """Register a candidate; return whether its *source*, in normal form, is new."""
        self._tried.add(edits)
        if source in self._sources:
            return False
        self._sources.add(source)
        return True

    def add(self, child: Evaluation, parent: Evaluation) -> bool:
        """Count *child* as a child of *parent*, and keep it unless its score is lower.

        Returns:
            Whether it was kept.
        """
        self._children[parent] += 1
        if child.score < parent.score:
            return False
        self.members.append(child)
        self._same_results.setdefault(child.passed, []).append(child)
        return True

    def exhaust(self, parent: Evaluation) -> None:
        """Exclude *parent* from selection, because it has no untried candidate left."""
        self._exhausted.add(parent)

    def weights(self) -> list[float]:
        """Selection weights: ``sigmoid(10 (score - 0.5)) / (1 + children)``; see the class."""
        return [
            0.0 if member in self._exhausted else self._weight(member) for member in self.members
        ]

    def choose_parent(self, rng: Random) -> Evaluation | None:
        """Draw a member by weight; None if all are exhausted."""
        weights = self.weights()
        return rng.choices(self.members, weights)[0] if any(weights) else None

    def _weight(self, member: Evaluation) -> float:
        first, *others = self._same_results[member.passed]
        fitness = 1.0 / (1.0 + exp(-10.0 * (member.score - 0.5)))
        if member is first:
            return fitness / (1 + self._children[member])
        return NEUTRAL_SHARE * fitness / (1 + self._children[first]) / len(others)

    def choose_mate(self, rng: Random, parent: Evaluation) -> Evaluation | None:
        """Draw a member that passes a test which *parent* fails, or None."""
        mates = [
            (member, weight)
            for member, weight in zip(self.members, map(self._weight, self.members), strict=True)
            if member.edits - parent.edits
            and any(
                theirs and not ours
                for theirs, ours in zip(member.passed, parent.passed, strict=True)
            )
        ]
        if not mates:
            return None
        return rng.choices([m for m, _ in mates], [weight for _, weight in mates])[0]
