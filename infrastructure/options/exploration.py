"""Exploration: with what probability a decision takes each action."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Exploration:
    """How often a decision deviates from the best-ranked action.

    Attributes:
        kind: ``none``: always the best. ``epsilon``: with probability *amount* any action, all
            equally likely. ``softmax``: in proportion to ``exp(score / amount)``.
        amount: Epsilon in [0, 1], or the softmax's temperature above 0, in units of the scores.
        floor: Lowest probability of an action under ``softmax``; with more than ``1 / floor``
            actions, all are equally likely.

    Raises:
        ValueError: A number is outside its range.
    """

    kind: Literal["none", "epsilon", "softmax"] = "none"
    amount: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.kind == "epsilon" and not 0.0 <= self.amount <= 1.0:
            raise ValueError(f"epsilon must lie in [0, 1], got {self.amount}")
        if self.kind == "softmax" and not 0.0 < self.amount < math.inf:
            raise ValueError(f"the temperature must be above 0 and finite, got {self.amount}")
        if not 0.0 <= self.floor <= 1.0:
            raise ValueError(f"the floor must lie in [0, 1], got {self.floor}")

    @classmethod
    def parse(cls, text: str) -> Exploration:
        """Read ``none``, ``epsilon 0.1``, ``softmax 0.2`` or ``softmax 0.2 floor 0.02``.

        Raises:
            ValueError: *text* is none of these, or a number is outside its range.
        """
        words = text.split()
        try:
            if words in ([], ["none"]):
                return cls()
            if words[0] == "epsilon" and len(words) == 2:
                return cls(kind="epsilon", amount=float(words[1]))
            if words[0] == "softmax" and len(words) == 2:
                return cls(kind="softmax", amount=float(words[1]))
            if words[0] == "softmax" and len(words) == 4 and words[2] == "floor":
                return cls(kind="softmax", amount=float(words[1]), floor=float(words[3]))
        except ValueError as error:
            raise ValueError(f"exploration {text!r:.60}: {error}") from None
        raise ValueError(
            f"exploration {text!r:.60}: write none, epsilon 0.1, softmax 0.2, or softmax 0.2 "
            "floor 0.02"
        )

    def propensities(self, order: Sequence[int], scores: Sequence[float] | None) -> list[float]:
        """Probability of each action, by its given position; they sum to 1.

        Args:
            order: Positions of the actions, best first.
            scores: Score of each action by position, the higher the better; None if there is none,
                which makes ``softmax`` take the first of *order* but for the floor.
        """
        count = len(order)
        if self.kind == "epsilon":
            chances = [self.amount / count] * count
            chances[order[0]] += 1.0 - self.amount
            return chances
        chances = [0.0] * count
        if self.kind == "none" or scores is None:
            chances[order[0]] = 1.0
        else:
            best = max(scores)
            weights = [math.exp((score - best) / self.amount) for score in scores]
            total = sum(weights)
            chances = [weight / total for weight in weights]
        floor = min(self.floor, 1.0 / count) if self.kind == "softmax" else 0.0
        return [floor + (1.0 - count * floor) * chance for chance in chances]


def choose(propensities: Sequence[float], *seeds: object) -> int:
    """Draw a position by *propensities*; equal *seeds* give the same one in every process."""
    digest = hashlib.blake2b(repr(seeds).encode(), digest_size=8).digest()
    point, last = int.from_bytes(digest) / 2**64, 0
    for position, propensity in enumerate(propensities):
        if propensity > 0.0:
            last, point = position, point - propensity
            if point < 0.0:
                break
    return last
