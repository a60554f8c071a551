from __future__ import annotations

import pytest

from agents.se_darwin.features import NUMBERS, Fields
from agents.se_darwin.search.ranker import EXPECTED_REPAIRS, RandomRanker, SuspicionRanker


def action(suspiciousness: float) -> Fields:
    place = NUMBERS.index("suspiciousness")
    return {"numbers": [0.0] * place + [suspiciousness]}


def test_the_chances_of_suspicion_fall_with_it_but_not_to_zero() -> None:
    chances = SuspicionRanker().success_chances({}, [action(0.2), action(0.9), action(0.0)])
    assert chances[1] > chances[0] > chances[2] > 0.0
    assert sum(chances) == pytest.approx(EXPECTED_REPAIRS)


def test_by_chance_all_are_equally_likely() -> None:
    chances = RandomRanker().success_chances({}, [action(0.2), action(0.9)])
    assert chances == pytest.approx([EXPECTED_REPAIRS / 2] * 2)


@pytest.mark.parametrize("ranker", [SuspicionRanker(), RandomRanker()])
def test_nothing_is_ranked_without_candidates(ranker: SuspicionRanker | RandomRanker) -> None:
    assert ranker.success_chances({}, []) == []
