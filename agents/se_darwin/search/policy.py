"""The policy: which candidates to run first, and the probability of each choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from agents.se_darwin.features import Fields


class Ranker(Protocol):
    """Ranks candidates; a world model is one."""

    def rank(self, observation: Fields, actions: Sequence[Fields]) -> list[int]:
        """Return positions in *actions*, best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A chosen candidate.

    Attributes:
        index: Its position among the candidates.
        propensity: Probability of this choice, given the previous ones.
    """

    index: int
    propensity: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How a search chooses candidates.

    Attributes:
        ranker: World model whose best-ranked candidates run first. Without one, candidates are
            drawn by the suspiciousness of the lines they change, as in GenProg.
        uniform: Whether candidates are drawn with equal weights instead, without a ranker.
        batch: Candidates per generation.
        epsilon: Share of uniformly random choices, in (0, 1].
        node_decay: Whether failures at a node lower the rank of its other candidates; see
            `decay_ranks`.
    """

    ranker: Ranker | None = None
    uniform: bool = False
    batch: int = 8
    epsilon: float = 0.1
    node_decay: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1 or not 0.0 < self.epsilon <= 1.0:
            raise ValueError(
                f"a policy needs batch >= 1 and epsilon in (0, 1], got {self.batch} and "
                f"{self.epsilon}"
            )
        if self.uniform and self.ranker is not None:
            raise ValueError("a policy has either a ranker or equal weights, not both")


def decay_ranks(order: Sequence[int], failures: Sequence[int]) -> list[int]:
    """Sort *order* again by rank times (1 + failures).

    Args:
        order: All candidates, best first.
        failures: Number of failed candidates that changed the same nodes, by candidate.
    """
    ranks = {index: rank * (1 + failures[index]) for rank, index in enumerate(order, 1)}
    return sorted(order, key=ranks.__getitem__)


def choose_ranked(rng: Random, order: Sequence[int], count: int, epsilon: float) -> list[Choice]:
    """Choose the first *count* of *order*; with probability *epsilon* each is a random one.

    Args:
        rng: Random generator.
        order: All candidates, best first.
        count: Number of choices.
        epsilon: In [0, 1].
    """
    remaining = list(order)
    chosen: list[Choice] = []
    while remaining and len(chosen) < count:
        explore = rng.random() < epsilon
        index = rng.choice(remaining) if explore else remaining[0]
        propensity = epsilon / len(remaining) + (1.0 - epsilon) * (index == remaining[0])
        remaining.remove(index)
        chosen.append(Choice(index=index, propensity=propensity))
    return chosen


def choose_weighted(
    rng: Random, weights: Sequence[float], count: int, epsilon: float
) -> list[Choice]:
    """Draw *count* candidates by weight without replacement, mixed with uniform draws.

    Args:
        rng: Random generator.
        weights: Weight of each candidate, at least 0.
        count: Number of choices.
        epsilon: Share of uniform draws, in (0, 1], so that every candidate is possible.
    """
    remaining = list(range(len(weights)))
    chosen: list[Choice] = []
    while remaining and len(chosen) < count:
        total = sum(weights[index] for index in remaining) or 1.0
        probabilities = [
            epsilon / len(remaining) + (1.0 - epsilon) * weights[index] / total
            for index in remaining
        ]
        [position] = rng.choices(range(len(remaining)), probabilities)
        propensity = probabilities[position] / sum(probabilities)
        chosen.append(Choice(index=remaining.pop(position), propensity=propensity))
    return chosen
