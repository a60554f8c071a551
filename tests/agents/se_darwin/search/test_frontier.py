from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.features import StepFeatures
from agents.se_darwin.sandbox import Execution
from agents.se_darwin.search.frontier import Branch, Frontier, Neighbourhood
from agents.se_darwin.tasks.evaluation import Evaluation

SPACE = EditSpace("def solve(x):\n    return x - 1", "solve")
PARENT = Evaluation(
    edits=frozenset(),
    source=SPACE.source,
    passed=(False,),
    execution=Execution(outputs=(None,), end="exit"),
    symptoms=(),
)
EDITS = [(edit,) for edit in SPACE.edits[:3]]


def branch(prospect: float, outlook: float = 1.0) -> Branch:
    return Branch(parent=PARENT, prospect=prospect, outlook=outlook)


class Ranking:
    """Gives each branch the chances 0.5, 0.2 and 0.1, and counts the branches."""

    def __init__(self) -> None:
        self.ranked: list[Branch] = []

    def __call__(self, branch: Branch) -> Neighbourhood:
        self.ranked.append(branch)
        return Neighbourhood(
            operator="revision",
            observation={},
            features=StepFeatures(SPACE, PARENT),
            ranked=list(zip((0.1, 0.2, 0.5), EDITS, strict=True)),
        )


def test_steps_of_all_branches_come_by_prospect_times_chance() -> None:
    frontier = Frontier(Ranking())
    first, second = branch(1.0), branch(0.3)
    frontier.push(first)
    frontier.push(second)
    order = []
    while choice := frontier.pop(Random(0), 0.0):
        order.append((choice.branch, choice.chance))
        assert choice.propensity == 1.0
    assert order == [
        (first, 0.5),
        (first, 0.2),
        (second, 0.5),
        (first, 0.1),
        (second, 0.2),
        (second, 0.1),
    ]


def test_a_branch_is_ranked_when_its_turn_comes_and_only_once() -> None:
    ranking = Ranking()
    frontier = Frontier(ranking)
    first, second = branch(1.0), branch(0.01)
    frontier.push(first)
    frontier.push(second)
    for _ in range(3):
        frontier.pop(Random(0), 0.0)
    assert ranking.ranked == [first]
    while frontier.pop(Random(0), 0.0):
        pass
    assert ranking.ranked == [first, second]


def test_a_branch_without_prospect_is_left_out() -> None:
    frontier = Frontier(Ranking())
    frontier.push(branch(0.0))
    assert len(frontier) == 0
    assert frontier.pop(Random(0), 0.5) is None


@pytest.mark.process
def test_propensities_are_the_probabilities_of_what_was_chosen() -> None:
    """Averaged over draws, 1 / propensity of a step counts it exactly once."""
    inverse: Counter[float] = Counter()
    draws = 3000
    for seed in range(draws):
        frontier = Frontier(Ranking())
        frontier.push(branch(1.0))
        choice = frontier.pop(Random(seed), 0.3)
        assert choice is not None
        inverse[choice.chance] += 1.0 / choice.propensity  # type: ignore[assignment]
    for chance in (0.1, 0.2, 0.5):
        assert inverse[chance] / draws == pytest.approx(1.0, abs=0.15)


def test_exploration_also_meets_other_branches() -> None:
    first, second = branch(1.0), branch(0.001)
    met: Counter[Branch] = Counter()
    for seed in range(1000):
        frontier = Frontier(Ranking())
        first.neighbourhood = second.neighbourhood = None
        frontier.push(first)
        frontier.push(second)
        choice = frontier.pop(Random(seed), 0.4)
        assert choice is not None
        met[choice.branch] += 1
        if choice.branch is second:
            assert choice.propensity == pytest.approx(1 / 3)
    assert met[second] / 1000 == pytest.approx(0.2, abs=0.04)
