"""Which candidates to run first, and with what probability each was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from agents.se_darwin.features import Fields


class Ranker(Protocol):
    """What a world model offers: candidates by promise."""

    def rank(self, observation: Fields, actions: Sequence[Fields]) -> list[int]:
        """Positions in *actions*, best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A candidate chosen.

    Attributes:
        index: Its position among the candidates.
        propensity: Probability of this choice, given those before it.
    """

    index: int
    propensity: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Which candidates a search runs.

    Attributes:
        ranker: A world model: the most promising run first. Without one, candidates are drawn
            by the suspiciousness of the lines they change, as GenProg does.
        batch: Candidates per generation.
        epsilon: Share of random choices either way, in (0, 1].
        node_decay: Whether a ranked candidate falls back where others of its node have failed;
            see `decay_places`.
    """

    ranker: Ranker | None = None
    batch: int = 8
    epsilon: float = 0.1
    node_decay: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1 or not 0.0 < self.epsilon <= 1.0:
            raise ValueError(
                f"a policy needs batch >= 1 and epsilon in (0, 1], got {self.batch} and "
                f"{self.epsilon}"
            )


def decay_places(order: Sequence[int], failures: Sequence[int]) -> list[int]:
    """*order* with each place multiplied by one plus the failures that speak against it.

    Args:
        order: All candidates, best first.
        failures: By candidate: how often others that change the same nodes have failed.
    """
    places = {index: place * (1 + failures[index]) for place, index in enumerate(order, 1)}
    return sorted(order, key=places.__getitem__)


def choose_ranked(rng: Random, order: Sequence[int], count: int, epsilon: float) -> list[Choice]:
    """The *count* first of *order*; each with probability *epsilon* a random one instead.

    Args:
        rng: Source of chance.
        order: All candidates, best first.
        count: How many to choose.
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
    """*count* candidates drawn by weight without replacement, mixed with uniform chance.

    Args:
        rng: Source of chance.
        weights: One per candidate, none negative.
        count: How many to choose.
        epsilon: Share of the uniform draw, in (0, 1], so that nothing is impossible.
    """
    remaining = list(range(len(weights)))
    chosen: list[Choice] = []
    while remaining and len(chosen) < count:
        total = sum(weights[index] for index in remaining) or 1.0
        chances = [
            epsilon / len(remaining) + (1.0 - epsilon) * weights[index] / total
            for index in remaining
        ]
        [position] = rng.choices(range(len(remaining)), chances)
        propensity = chances[position] / sum(chances)
        chosen.append(Choice(index=remaining.pop(position), propensity=propensity))
    return chosen
