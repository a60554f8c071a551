"""Paired runs: a real drift is found, chance is not."""

import math
import random

import pytest
from pydantic import ValidationError

from genesis_fp16.domain.guard import GuardSettings, Pair
from genesis_fp16.guard.metric_pairs import judge

SETTINGS = GuardSettings()


def pair(half: float, fp32: float, higher_is_better: bool = False) -> Pair:
    return Pair(
        half_run="h",
        fp32_run="f",
        metric="mse",
        half=half,
        fp32=fp32,
        higher_is_better=higher_is_better,
    )


def test_the_same_drift_in_every_pair_is_found_with_the_fewest() -> None:
    worse = pair(1.03, 1.0)
    assert judge([worse, worse], SETTINGS) is None
    found = judge([worse] * 3, SETTINGS)
    assert found is not None
    assert found.trigger == "metric_drift"
    assert "in 3 pairs of runs the held-out mse is 3.0% worse" in found.said
    assert found.numbers["pairs"][0]["worse_by"] == pytest.approx(0.03)


@pytest.mark.parametrize(
    "each",
    [
        pair(1.01, 1.0),
        pair(0.9, 1.0),
        pair(1.1, 1.0, higher_is_better=True),
        pair(-0.9, -1.0, higher_is_better=True),
        pair(0.0, 0.0),
        pair(math.nan, math.nan),
    ],
)
def test_no_drift(each: Pair) -> None:
    assert judge([each] * 5, SETTINGS) is None


@pytest.mark.parametrize(
    "each",
    [
        pair(0.97, 1.0, higher_is_better=True),
        pair(-1.03, -1.0, higher_is_better=True),
        pair(math.nan, 1.0),
        pair(math.inf, 1.0),
        pair(0.1, 0.0),
    ],
)
def test_drift(each: Pair) -> None:
    assert judge([each] * 3, SETTINGS) is not None


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_runs_that_differ_by_chance_are_left_alone(noise: float) -> None:
    """Healthy agents, looked at after every pair: hardly one is ever accused."""
    accused = 0
    for agent in range(40):
        draw = random.Random(agent)
        pairs = [pair(draw.gauss(1.0, noise), draw.gauss(1.0, noise)) for _ in range(30)]
        accused += any(judge(pairs[:seen], SETTINGS) for seen in range(3, 31, 3))
    assert accused <= 1


@pytest.mark.parametrize(("factor", "noise", "wanted"), [(1.1, 0.02, 10), (10.0, 0.3, 6)])
def test_a_drift_within_noise_is_found_in_time(factor: float, noise: float, wanted: int) -> None:
    draw = random.Random(1)
    pairs = [pair(factor * draw.gauss(1.0, noise), draw.gauss(1.0, noise)) for _ in range(wanted)]
    assert judge(pairs, SETTINGS) is not None


def test_the_newest_pairs_count() -> None:
    long_ago, lately = [pair(1.0, 1.0)] * 200, [pair(1.03, 1.0)] * 64
    assert judge(long_ago + lately, SETTINGS) is not None
    assert judge(lately + long_ago, SETTINGS) is None


def test_three_pairs_that_differ_are_less_sure_than_four() -> None:
    three = [pair(half, 1.0) for half in (1.10, 1.11, 1.12)]
    assert judge(three, SETTINGS) is None
    assert judge([*three, pair(1.11, 1.0)], SETTINGS) is not None


@pytest.mark.parametrize(
    ("half", "worse_by", "worse_share"),
    [(0.0, 0.0, 0.0), (0.1, math.inf, 1.0), (-0.1, -math.inf, -1.0)],
)
def test_beside_a_value_of_zero(half: float, worse_by: float, worse_share: float) -> None:
    assert (pair(half, 0.0).worse_by, pair(half, 0.0).worse_share) == (worse_by, worse_share)


def test_the_share_stays_small_however_bad_it_is() -> None:
    assert pair(100.0, 1.0).worse_by == 99.0
    assert pair(100.0, 1.0).worse_share == pytest.approx(0.99)


def test_one_pair_has_no_spread() -> None:
    with pytest.raises(ValidationError, match="guard_pairs"):
        GuardSettings(guard_pairs=1)
