"""Probabilities of exploration, and what is drawn by them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.options.exploration import Exploration, choose


def test_without_exploration_the_best_is_taken() -> None:
    assert Exploration().propensities([2, 0, 1], [0.1, 0.2, 0.3]) == [0.0, 0.0, 1.0]


def test_epsilon_greedy_spreads_epsilon_over_all_actions() -> None:
    chances = Exploration.parse("epsilon 0.3").propensities([1, 0, 2], None)
    assert chances == pytest.approx([0.1, 0.8, 0.1])


def test_softmax_follows_the_scores_and_keeps_a_floor() -> None:
    explore = Exploration.parse("softmax 0.1 floor 0.05")
    chances = explore.propensities([2, 1, 0], [0.0, 0.5, 0.9])
    assert chances[2] > chances[1] >= chances[0] >= 0.05
    assert explore.propensities([2, 1, 0], None) == pytest.approx([0.05, 0.05, 0.9])
    many = explore.propensities(list(range(100)), [0.0] * 100)
    assert many == pytest.approx([0.01] * 100), "a floor above 1/n makes all equally likely"


@given(
    st.sampled_from(["none", "epsilon 0.2", "softmax 0.5", "softmax 1e-9 floor 0.01"]),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20),
)
def test_propensities_sum_to_one(text: str, scores: list[float]) -> None:
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    chances = Exploration.parse(text).propensities(order, scores)
    assert sum(chances) == pytest.approx(1.0)
    assert all(0.0 <= chance <= 1.0 + 1e-9 for chance in chances)
    assert chances[choose(chances, "any")] > 0.0


def test_draws_follow_the_propensities_and_repeat_with_the_seed() -> None:
    chances = [0.1, 0.0, 0.9]
    drawn = Counter(choose(chances, "qa", 0, number) for number in range(10_000))
    assert drawn[1] == 0
    assert drawn[0] == pytest.approx(1000, abs=150)
    assert choose(chances, "qa", 0, 7) == choose(chances, "qa", 0, 7)


@pytest.mark.parametrize(
    "text", ["epsilon", "epsilon 2", "softmax 0", "softmax x", "softmax 1 floor -1", "greedy"]
)
def test_a_wrong_text_is_refused_with_its_cure(text: str) -> None:
    with pytest.raises(ValueError, match="exploration"):
        Exploration.parse(text)
