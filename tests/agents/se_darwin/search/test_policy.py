from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from agents.se_darwin.search.policy import Policy, choose_ranked, choose_weighted, decay_ranks


def test_a_ranking_is_followed_except_for_random_choices() -> None:
    order = [3, 1, 0, 2]
    assert [c.index for c in choose_ranked(Random(0), order, 4, 0.0)] == order
    first = Counter(choose_ranked(Random(n), order, 1, 0.4)[0].index for n in range(2000))
    for index, count in first.items():
        expected = 0.6 + 0.1 if index == 3 else 0.1
        assert count / 2000 == pytest.approx(expected, abs=0.03)


def test_weights_are_mixed_with_chance() -> None:
    weights = [0.0, 3.0, 1.0]
    first = Counter(choose_weighted(Random(n), weights, 1, 0.3)[0].index for n in range(2000))
    for index, weight in enumerate(weights):
        expected = 0.1 + 0.7 * weight / 4.0
        assert first[index] / 2000 == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("chooser", [choose_ranked, choose_weighted])
def test_propensities_are_the_probabilities_of_what_was_chosen(chooser: object) -> None:
    """Averaged over draws, 1 / propensity of an index counts it exactly once."""
    inverse: Counter[int] = Counter()
    draws = 4000
    for seed in range(draws):
        argument = [0, 1, 2] if chooser is choose_ranked else [5.0, 1.0, 0.0]
        [choice] = chooser(Random(seed), argument, 1, 0.3)  # type: ignore[operator]
        inverse[choice.index] += 1.0 / choice.propensity  # type: ignore[assignment]
    for index in range(3):
        assert inverse[index] / draws == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("count", [0, 2, 9])
def test_nothing_is_chosen_twice(count: int) -> None:
    for choices in (
        choose_ranked(Random(0), range(4), count, 0.5),
        choose_weighted(Random(0), [0.0] * 4, count, 0.5),
    ):
        assert len({choice.index for choice in choices}) == len(choices) == min(count, 4)


def test_a_policy_without_chance_is_refused() -> None:
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1.1}, {"batch": 0}):
        with pytest.raises(ValueError, match="epsilon"):
            Policy(**wrong)  # type: ignore[arg-type]


def test_failures_at_a_node_lower_the_rank_of_its_candidates() -> None:
    assert decay_ranks([2, 0, 1], [0, 0, 0]) == [2, 0, 1]
    assert decay_ranks([2, 0, 1], [0, 0, 2]) == [0, 2, 1]  # places 2, 3 and 3: ties as they came
    assert decay_ranks([2, 0, 1], [0, 0, 9]) == [0, 1, 2]


def test_without_any_weight_all_are_as_likely() -> None:
    choices = choose_weighted(Random(0), [0.0] * 4, 4, 0.3)
    assert [choice.propensity for choice in choices] == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])


@pytest.mark.parametrize("seed", range(5))
def test_the_second_choice_is_among_those_that_are_left(seed: int) -> None:
    weights = [4.0, 2.0, 1.0, 0.0]
    first, second = choose_weighted(Random(seed), weights, 2, 0.4)
    left = sum(weights) - weights[first.index]
    assert second.propensity == pytest.approx(0.4 / 3 + 0.6 * weights[second.index] / left)
