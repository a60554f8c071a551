"""Best-first order over the untried steps from all programs that are worth another edit."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from agents.se_darwin.edits import Edit
from agents.se_darwin.features import Fields, Step, StepFeatures
from agents.se_darwin.tasks.evaluation import Evaluation
from infrastructure.agent_contract.proposer import EDITS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Neighbourhood:
    """The untried steps from one program, and what a ranker sees of them.

    Attributes:
        operator: Operator of the steps.
        observation: Observation fields of the program.
        features: Action fields of its steps.
        ranked: The chance of each step to make the repair, if one of them does, and the edits that
            it adds; in ascending order of chance.
    """

    operator: str
    observation: Fields
    features: StepFeatures
    ranked: list[tuple[float, tuple[Edit, ...]]]


@dataclass(kw_only=True, slots=True, eq=False)
class Branch:
    """A program from which the search may go on.

    Attributes:
        parent: The program.
        prospect: Odds that its edits are a part of the repair, relative to those that a single
            edit of the given program is the repair, which are 1.
        outlook: Estimated chance of its best step, as long as its steps are not ranked.
        added: Edits that the only step adds; empty if every edit of the space is a step.
        operator: Operator of its steps.
        owner: Proposer whose share of the executions its steps use.
        neighbourhood: Its steps; None until they are ranked.
    """

    parent: Evaluation
    prospect: float
    outlook: float
    added: tuple[Edit, ...] = ()
    operator: str = "revision"
    owner: str = EDITS
    neighbourhood: Neighbourhood | None = None

    @property
    def is_proposal(self) -> bool:
        """Whether its only step makes what a proposer wrote."""
        return bool(self.added) and self.operator == "revision"

    @property
    def value(self) -> float:
        """Odds that its best untried step makes the repair; 0 if none is left."""
        if self.neighbourhood is None:
            return self.prospect * self.outlook
        ranked = self.neighbourhood.ranked
        return self.prospect * ranked[-1][0] if ranked else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A step that was chosen.

    Attributes:
        branch: Branch of its parent.
        neighbourhood: Steps of its parent.
        step: The step.
        chance: Chance that it makes the repair, if a step of its parent does.
        propensity: Probability of this choice among the parent's untried steps.
    """

    branch: Branch
    neighbourhood: Neighbourhood
    step: Step
    chance: float
    propensity: float


class Frontier:
    """Priority queues of branches, one per owner, by the value of their best untried step.

    A choice costs a logarithm of the number of branches. The steps of a branch are ranked once,
    when no other branch of its owner has a better value.

    Args:
        rank: Function that ranks the steps of a branch.
    """

    def __init__(self, rank: Callable[[Branch], Neighbourhood]) -> None:
        self._rank = rank
        self._numbers = count()
        self._heaps: defaultdict[str, list[tuple[float, int, Branch]]] = defaultdict(list)

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    def owners(self) -> list[str]:
        """Return the owners that have a branch."""
        return [owner for owner, heap in self._heaps.items() if heap]

    def count_waiting(self) -> Counter[str]:
        """Return the number of proposals by owner that have not been tried."""
        return Counter(
            branch.owner
            for heap in self._heaps.values()
            for _, _, branch in heap
            if branch.is_proposal
        )

    def push(self, branch: Branch) -> None:
        """Add *branch*, unless it has no step left."""
        if branch.value > 0.0:
            heap = self._heaps[branch.owner]
            heapq.heappush(heap, (-branch.value, next(self._numbers), branch))

    def pop(self, rng: Random, epsilon: float, owner: str = EDITS) -> Choice | None:
        """Take the most valuable step of *owner*; with probability *epsilon* explore.

        Exploration takes a random step, half of the time one of another branch, so that a run also
        meets programs with several edits. A propensity is the probability of a step given its
        parent.

        Returns:
            The step, or None if there is none.
        """
        heap = self._heaps[owner]
        if not self._rank_top(heap):
            return None
        others = len(heap) - 1
        explored = epsilon / 2 if others else epsilon  # the share of random steps of the top
        draw = rng.random() if epsilon else 1.0
        index = 1 + rng.randrange(others) if explored <= draw < epsilon else 0
        branch, steps = self._remove(heap, index)
        if not steps.ranked:
            return self.pop(rng, epsilon, owner)
        count, propensity = len(steps.ranked), 1.0 / len(steps.ranked)
        position = rng.randrange(count) if draw < epsilon else count - 1
        if index == 0:
            greedy = (1.0 - epsilon) * (position == count - 1)
            propensity = (greedy + explored / count) / (1.0 - epsilon + explored)
        choice = _choice(branch, steps, position, propensity)
        self.push(branch)
        return choice

    def pop_proposal(self, owner: str) -> Choice | None:
        """Take the likeliest program that *owner* wrote, or None if none is left."""
        heap = self._heaps[owner]
        places = [place for place, (_, _, branch) in enumerate(heap) if branch.is_proposal]
        if not places:
            return None
        branch, steps = self._remove(heap, min(places, key=lambda place: heap[place][:2]))
        return _choice(branch, steps, -1, 1.0)

    def _rank_top(self, heap: list[tuple[float, int, Branch]]) -> bool:
        """Rank branches until the most valuable one is ranked; return whether there is one."""
        while heap and heap[0][2].neighbourhood is None:
            branch, _ = self._remove(heap, 0)
            self.push(branch)
        return bool(heap)

    def _remove(
        self, heap: list[tuple[float, int, Branch]], index: int
    ) -> tuple[Branch, Neighbourhood]:
        """Remove a branch, and return it with its ranked steps."""
        if index == 0:
            branch = heapq.heappop(heap)[2]
        else:
            branch = heap.pop(index)[2]
            heapq.heapify(heap)
        if branch.neighbourhood is None:
            branch.neighbourhood = self._rank(branch)
        return branch, branch.neighbourhood


def _choice(branch: Branch, steps: Neighbourhood, position: int, propensity: float) -> Choice:
    chance, added = steps.ranked.pop(position)
    changed = frozenset(added)
    return Choice(
        branch=branch,
        neighbourhood=steps,
        step=Step(operator=steps.operator, changed=changed, edits=branch.parent.edits | changed),
        chance=chance,
        propensity=propensity,
    )
