"""Programs worth building on, chosen as the Darwin Gödel machine chooses its parents."""

from __future__ import annotations

from collections import Counter
from math import exp
from random import Random

from agents.se_darwin.edits import Edit
from agents.se_darwin.evaluation import Evaluation

NEUTRAL_SHARE = 0.1


class Archive:
    """The root, what is at least as good as its parent, and all that was ever tried.

    Neutral moves are kept: what mends one of two faults may change no test's outcome. They are
    more than half of all candidates, so those that pass the same tests as an earlier member share
    a part of its weight among them; with a weight each they would drown what leads somewhere.

    Args:
        root: The program under repair.

    Attributes:
        members: In order of arrival, the root first.
    """

    def __init__(self, root: Evaluation) -> None:
        self.members = [root]
        self._children: Counter[Evaluation] = Counter()
        self._alike = {root.passed: [root]}
        self._exhausted: set[Evaluation] = set()
        self._sources = {root.source}
        self._tried = {root.edits}

    def __len__(self) -> int:
        return len(self.members)

    @property
    def best(self) -> Evaluation:
        """The member with the highest score; among equals the one with fewest edits."""
        return max(self.members, key=lambda member: (member.score, -len(member.edits)))

    def is_untried(self, edits: frozenset[Edit]) -> bool:
        """Whether no candidate had exactly these edits."""
        return edits not in self._tried

    def claim(self, edits: frozenset[Edit], source: str) -> bool:
        """Note a candidate; whether its *source*, in normal form, is new here."""
        self._tried.add(edits)
        if source in self._sources:
            return False
        self._sources.add(source)
        return True

    def add(self, child: Evaluation, parent: Evaluation) -> bool:
        """Count *child* against *parent*; keep it unless it is worse.

        Returns:
            Whether it was kept.
        """
        self._children[parent] += 1
        if child.score < parent.score:
            return False
        self.members.append(child)
        self._alike.setdefault(child.passed, []).append(child)
        return True

    def exhaust(self, parent: Evaluation) -> None:
        """Choose *parent* no more: nothing is left that could be made from it."""
        self._exhausted.add(parent)

    def weights(self) -> list[float]:
        """Parent weights: ``sigmoid(10 (score - 0.5)) / (1 + children)``; see the class."""
        return [
            0.0 if member in self._exhausted else self._weight(member) for member in self.members
        ]

    def choose_parent(self, rng: Random) -> Evaluation | None:
        """Draw a member by its weight; None if all are exhausted."""
        weights = self.weights()
        return rng.choices(self.members, weights)[0] if any(weights) else None

    def _weight(self, member: Evaluation) -> float:
        first, *others = self._alike[member.passed]
        promise = 1.0 / (1.0 + exp(-10.0 * (member.score - 0.5)))
        if member is first:
            return promise / (1 + self._children[member])
        return NEUTRAL_SHARE * promise / (1 + self._children[first]) / len(others)

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
