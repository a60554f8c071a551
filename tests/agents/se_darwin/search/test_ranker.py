from __future__ import annotations

from collections.abc import Sequence

from agents.se_darwin.features import NUMBERS, Fields
from agents.se_darwin.search.ranker import CombinedRanker, RandomRanker, SuspicionRanker


def action(suspiciousness: float) -> Fields:
    place = NUMBERS.index("suspiciousness")
    return {"numbers": [0.0] * place + [suspiciousness]}


def test_the_chances_of_suspicion_fall_with_it_but_not_to_zero() -> None:
    chances = SuspicionRanker().success_chances({}, [action(0.2), action(0.9), action(0.0)])
    assert chances[1] > chances[0] > chances[2] > 0.0


def test_by_chance_all_are_equally_likely() -> None:
    assert len(set(RandomRanker().success_chances({}, [action(0.2), action(0.9)]))) == 1


class Model:
    """Thinks the first two steps equal, and the third far likelier."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        return [0.001, 0.001, 0.9]


def test_suspicion_decides_where_the_model_is_undecided_and_not_against_it() -> None:
    chances = CombinedRanker(Model()).success_chances({}, [action(0.3), action(0.9), action(0.0)])
    assert chances[2] > chances[1] > chances[0] > 0.0
