"""Evidence against a model's predictions, from sums that a predictor reports."""

import math
import random

import pytest

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.domain.predictor import BETS, JudgedOutcomes, PolicySums
from genesis_fp16.guard.models.watch import ModelWatch, WatchedAgent

SETTINGS = GuardSettings()
HELD_OUT, BASE_RATE, DEVIATION = 0.5, 0.8, 0.4


def watch() -> ModelWatch:
    return ModelWatch(version="v", held_out_loss=HELD_OUT, base_rate_loss=BASE_RATE)


def judged(losses: list[float], **fields: object) -> JudgedOutcomes:
    """What a predictor reports of these losses, with a bound at the held-out loss."""
    excess = [max((loss - HELD_OUT) / DEVIATION, -4.0) for loss in losses]
    return JudgedOutcomes(
        version="v",
        held_out_loss=HELD_OUT,
        base_rate_loss=BASE_RATE,
        count=len(losses),
        loss_sum=sum(losses),
        expected_loss_sum=HELD_OUT * len(losses),
        evidence=[sum(math.log1p(bet * each) for each in excess) for bet in BETS],
        **fields,
    )


def outcomes_until_failure(mean: float, seed: int, most: int = 5000) -> int | None:
    source, of = random.Random(seed), watch()
    for seen in range(0, most, 5):
        of.add(judged([source.gauss(mean, DEVIATION) for _ in range(5)]), SETTINGS)
        if of.has_failed(SETTINGS):
            return seen + 5
    return None


def test_a_model_that_holds_is_left_alone() -> None:
    assert [outcomes_until_failure(HELD_OUT, seed) for seed in range(10)] == [None] * 10


def test_a_model_that_lost_half_its_skill_fails_soon() -> None:
    seen = [outcomes_until_failure(HELD_OUT + 0.15, seed, most=1000) for seed in range(10)]
    assert all(count is not None and count <= 500 for count in seen), seen


def test_evidence_alone_is_not_enough_where_little_skill_is_lost() -> None:
    assert outcomes_until_failure(HELD_OUT + 0.03, seed=0, most=20_000) is None


def test_a_long_healthy_past_does_not_delay_the_alarm() -> None:
    source, of = random.Random(1), watch()
    for _ in range(400):
        of.add(judged([source.gauss(HELD_OUT, DEVIATION) for _ in range(25)]), SETTINGS)
    assert not of.has_failed(SETTINGS)
    for _ in range(12):
        of.add(judged([source.gauss(HELD_OUT + 0.25, DEVIATION) for _ in range(25)]), SETTINGS)
    assert of.has_failed(SETTINGS), "300 outcomes after 10,000 good ones"


def test_what_was_seen_survives_a_restart() -> None:
    of = watch()
    of.add(judged([0.9] * 30, input_drift=0.25), SETTINGS)
    again = WatchedAgent.model_validate_json(WatchedAgent(watch=of).model_dump_json()).watch
    assert again == of
    assert again is not None
    assert again.reading(SETTINGS) == of.reading(SETTINGS)


def test_a_reading_needs_a_full_window_and_enough_for_each_figure() -> None:
    of = watch()
    assert not of.add(judged([0.5] * 24), SETTINGS)
    assert of.reading(SETTINGS) is None
    bins = {"binned": [0.0] * 9 + [1.0], "expected": [0.0] * 9 + [0.95], "happened": [0.0] * 10}
    assert of.add(judged([0.5], covered=1, intervals=1, **bins), SETTINGS)
    reading = of.reading(SETTINGS)
    assert reading is not None
    assert (reading.outcomes, reading.log_loss) == (25, pytest.approx(0.5))
    assert (reading.calibration_error, reading.coverage, reading.gain) == (None, None, None)
    many = {name: [100 * each for each in values] for name, values in bins.items()}
    of.add(judged([0.5] * 100, covered=80, intervals=100, **many), SETTINGS)
    reading = of.reading(SETTINGS)
    assert reading is not None
    assert reading.calibration_error == pytest.approx(0.95)
    assert reading.coverage == pytest.approx(81 / 101)


def test_the_gain_over_the_own_order_is_estimated_where_decisions_explore() -> None:
    source, policies = random.Random(0), PolicySums()
    for _ in range(2000):  # the model takes the second action, worth .7; the first is worth .2
        chosen = source.randrange(2)
        reward = float(source.random() < (0.7 if chosen else 0.2))
        policies.add(reward, 2.0 * (chosen == 1), 2.0 * (chosen == 0))
    of = watch()
    of.add(judged([0.5] * 25, policies=policies), SETTINGS)
    reading = of.reading(SETTINGS)
    assert reading is not None
    assert reading.gain_low is not None
    assert reading.gain_high is not None
    assert reading.gain_low < 0.5 < reading.gain_high
    assert reading.gain_high - reading.gain_low < 0.15


@pytest.mark.parametrize(("drift", "fails"), [(None, False), (0.4, False), (0.6, True)])
def test_with_drifted_inputs_half_the_evidence_suffices(drift: float | None, fails: bool) -> None:
    of, losses = watch(), [HELD_OUT + 0.5] * 25
    some = judged(losses, input_drift=drift)
    some.evidence = [6.0] * len(BETS)  # of about 10 that are asked for
    of.add(some, SETTINGS)
    assert of.has_failed(SETTINGS) is fails
