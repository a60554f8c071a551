from __future__ import annotations

from agents.se_darwin.features import NUMBERS, Fields
from agents.se_darwin.search.ranker import RandomRanker, SuspicionRanker


def action(suspiciousness: float) -> Fields:
    place = NUMBERS.index("suspiciousness")
    return {"numbers": [0.0] * place + [suspiciousness]}


def test_the_chances_of_suspicion_fall_with_it_but_not_to_zero() -> None:
    chances = SuspicionRanker().success_chances({}, [action(0.2), action(0.9), action(0.0)])
    assert chances[1] > chances[0] > chances[2] > 0.0


def test_by_chance_all_are_equally_likely() -> None:
    assert len(set(RandomRanker().success_chances({}, [action(0.2), action(0.9)]))) == 1
