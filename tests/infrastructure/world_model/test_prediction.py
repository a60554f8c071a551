import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, TransitionSpec
from infrastructure.world_model.distributions import BoxDistribution, DiscreteDistribution
from infrastructure.world_model.distributions.metrics import Z_90
from infrastructure.world_model.prediction import (
    expected_improvements,
    improvement_target,
    rank_candidates,
    success_probabilities,
    to_predictions,
    untrained_prediction,
)

SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,)), "level": Box()},
    action={},
    targets={
        "outcome": Discrete(values=("worse", "fixed")),
        "x": Box(shape=(2,), delta=True),
        "level": Box(),
        "reward": Box(),
    },
    success=("outcome", "fixed"),
)


def _box(*rows):
    mean = torch.tensor(rows, dtype=torch.float64)
    return BoxDistribution(mean=mean, variance=torch.full_like(mean, 4.0))


def _predicted(fixed, rewards):
    chances = torch.tensor(fixed, dtype=torch.float64)
    rows = len(fixed)
    return {
        "outcome": DiscreteDistribution(
            probabilities=torch.stack([1 - chances, chances], 1),
        ),
        "x": _box(*[(1.0, -1.0)] * rows),
        "level": _box(*[(7.0,)] * rows),
        "reward": _box(*[(reward,) for reward in rewards]),
    }


def test_a_prediction_holds_every_target_in_recorded_units():
    observations, confidence_N = [{"x": (10, 20), "level": 3.0}], torch.tensor([0.5])
    [answer] = to_predictions(SPEC, _predicted([0.75], [0.5]), observations, confidence_N, "why")
    assert answer.next_state == {"outcome": "fixed", "x": (11.0, 19.0), "level": 7.0}
    assert answer.success_probability == 0.75
    assert answer.expected_improvement == 0.5
    assert answer.confidence == 0.5
    assert answer.probabilities == {"outcome": {"worse": 0.25, "fixed": 0.75}}
    assert answer.deviations == {"x": (2.0, 2.0), "level": (2.0,), "reward": (2.0,)}
    assert answer.intervals["x"].low == pytest.approx((11 - 2 * Z_90, 19 - 2 * Z_90))
    assert answer.intervals["level"].high == pytest.approx((7 + 2 * Z_90,))
    assert answer.intervals["level"].coverage == 0.9
    assert answer.reasoning == "why"


def test_candidates_are_ranked_by_success_then_improvement_then_position():
    predicted = _predicted([0.2, 0.8, 0.8, 0.8, 0.1], [9.0, 1.0, 2.0, 1.0, 9.0])
    chances = success_probabilities(SPEC, predicted)
    improvements = expected_improvements(SPEC, predicted)
    assert rank_candidates(5, chances, improvements) == [2, 1, 3, 0, 4]


def test_without_a_success_label_improvement_ranks():
    targets = {name: SPEC.targets[name] for name in ("level", "reward")}
    spec = TransitionSpec(observation={"level": Box()}, action={}, targets=targets)
    predicted = {"level": _box((0.0,), (0.0,)), "reward": _box((1.0,), (2.0,))}
    assert rank_candidates(2, None, expected_improvements(spec, predicted)) == [1, 0]
    answers = to_predictions(spec, predicted, [{"level": 0.0}] * 2, torch.ones(2), "")
    assert [answer.success_probability for answer in answers] == [None, None]


def test_without_either_the_given_order_is_kept():
    spec = TransitionSpec(observation={"level": Box()}, action={}, targets={"level": Box()})
    assert improvement_target(spec) is None
    assert expected_improvements(spec, {"level": _box((1.0,), (2.0,), (3.0,))}) is None
    assert rank_candidates(3, None, None) == [0, 1, 2]


def test_an_untrained_model_gives_even_odds_and_no_confidence():
    answer = untrained_prediction(SPEC)
    assert (answer.success_probability, answer.expected_improvement) == (0.5, 0.0)
    assert (answer.confidence, answer.next_state) == (0.0, {})
