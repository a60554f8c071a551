"""Programs worth building on, chosen as the Darwin Gödel machine chooses its parents."""

from __future__ import annotations

from math import exp
from random import Random

from agents.se_darwin.evaluation import Evaluation


class Archive:
    """The root and what improved on its parent or passes other tests than any before it.

    Args:
        root: The program under repair.

    Attributes:
        members: In order of arrival, the root first.
    """

    def __init__(self, root: Evaluation) -> None:
        self.members = [root]
        self._children = [0]
        self._sources = {root.source}
        self._behaviours = {root.passed}

    def __len__(self) -> int:
        return len(self.members)

    @property
    def best(self) -> Evaluation:
        """The member with the highest score; among equals the one with fewest edits."""
        return max(self.members, key=lambda member: (member.score, -len(member.edits)))

    def claim(self, source: str) -> bool:
        """Whether *source*, in normal form, is new here; it no longer is afterwards."""
        if source in self._sources:
            return False
        self._sources.add(source)
        return True

    def add(self, child: Evaluation, parent: Evaluation) -> bool:
        """Count *child* against *parent*; keep it if it improves on it or passes other tests.

        Returns:
            Whether it was kept.
        """
        self.count_attempt(parent)
        novel = child.score >= parent.score and child.passed not in self._behaviours
        if not novel and child.score <= parent.score:
            return False
        self._behaviours.add(child.passed)
        self.members.append(child)
        self._children.append(0)
        return True

    def count_attempt(self, parent: Evaluation) -> None:
        """Count an attempt against *parent*, so that others are chosen more often."""
        self._children[self.members.index(parent)] += 1

    def weights(self) -> list[float]:
        """Parent weights: ``sigmoid(10 (score - 0.5)) / (1 + children)``."""
        return [
            1.0 / (1.0 + exp(-10.0 * (member.score - 0.5))) / (1 + children)
            for member, children in zip(self.members, self._children, strict=True)
        ]

    def choose_parent(self, rng: Random) -> Evaluation:
        """Draw a member by its weight."""
        return rng.choices(self.members, self.weights())[0]

    def choose_mate(self, rng: Random, parent: Evaluation) -> Evaluation | None:
        """Draw a member that passes a test which *parent* fails, or None."""
        mates = [
            (member, weight)
            for member, weight in zip(self.members, self.weights(), strict=True)
            if member.edits - parent.edits
            and any(
                theirs and not ours
                for theirs, ours in zip(member.passed, parent.passed, strict=True)
            )
        ]
        if not mates:
            return None
        return rng.choices([m for m, _ in mates], [weight for _, weight in mates])[0]
