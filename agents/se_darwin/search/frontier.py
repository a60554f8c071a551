"""Best-first order over the untried steps of all programs that are worth another edit."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from agents.se_darwin.features import Fields, Step, StepFeatures
from agents.se_darwin.tasks.evaluation import Evaluation


@dataclass(kw_only=True, slots=True, eq=False)
class Neighbourhood:
    """The untried steps from one program, and what a ranker sees of them.

    Attributes:
        observation: Observation fields of the program.
        features: Action fields of its steps.
        ranked: Chance to be the repair, and step; in ascending order of chance.
        total: Sum of the chances of all steps, tried or not.
    """

    observation: Fields
    features: StepFeatures
    ranked: list[tuple[float, Step]]
    total: float = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(chance for chance, _ in self.ranked)


@dataclass(kw_only=True, slots=True, eq=False)
class Branch:
    """A program from which the search may go on.

    Attributes:
        parent: The program.
        prospect: Estimated probability that its edits are a part of a repair.
        outlook: Chance of its best step, as long as its steps are not ranked.
        neighbourhood: Its steps; None until they are ranked.
    """

    parent: Evaluation
    prospect: float
    outlook: float
    neighbourhood: Neighbourhood | None = None

    @property
    def value(self) -> float:
        """Estimated probability that its best untried step makes the repair."""
        if self.neighbourhood is None:
            return self.prospect * self.outlook
        ranked = self.neighbourhood.ranked
        return self.prospect * ranked[-1][0] if ranked else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A step that was chosen.

    Attributes:
        branch: Branch of its parent.
        neighbourhood: Neighbourhood of its parent.
        step: The step.
        chance: Chance that it makes the repair, if the parent is one step from it.
        propensity: Probability of this choice among the parent's untried steps.
    """

    branch: Branch
    neighbourhood: Neighbourhood
    step: Step
    chance: float
    propensity: float


class Frontier:
    """Priority queue of branches by the value of their best untried step.

    Args:
        rank: Function that ranks the steps of a branch; called once for each branch, when the
            branch has the highest value of all.
    """

    def __init__(self, rank: Callable[[Branch], Neighbourhood]) -> None:
        self._rank = rank
        self._numbers = count()
        self._heap: list[tuple[float, int, Branch]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, branch: Branch) -> None:
        """Add *branch*, unless it has no step left."""
        if branch.value > 0.0:
            heapq.heappush(self._heap, (-branch.value, next(self._numbers), branch))

    def pop(self, rng: Random, epsilon: float) -> Choice | None:
        """Take the most valuable step; with probability *epsilon* another one of its parent.

        Returns:
            The step, or None if there is none.
        """
        while self._heap:
            branch = heapq.heappop(self._heap)[2]
            if branch.neighbourhood is None:
                branch.neighbourhood = self._rank(branch)
                self.push(branch)
                continue
            ranked = branch.neighbourhood.ranked
            best = position = len(ranked) - 1
            if epsilon and rng.random() < epsilon:
                position = rng.randrange(len(ranked))
            propensity = epsilon / len(ranked) + (1.0 - epsilon) * (position == best)
            chance, step = ranked.pop(position)
            self.push(branch)
            return Choice(
                branch=branch,
                neighbourhood=branch.neighbourhood,
                step=step,
                chance=chance,
                propensity=propensity,
            )
        return None
