import math
import random
from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract.transition import Discrete, Text, Transition, TransitionSpec
from infrastructure.world_model import WorldModel
from infrastructure.world_model.distributions.policy_shift import check_policy_shift


def _rows(count, propensity):
    return [
        Transition(group="g", observation={"x": 0.0}, action={}, propensity=propensity(row))
        for row in range(count)
    ]


def test_missing_propensities_give_a_warning():
    check = check_policy_shift(
        torch.full((4,), 0.5), torch.ones(4).bool(), _rows(4, lambda _: None)
    )
    assert math.isnan(check.ece)
    assert "not recorded" in check.warning


def test_rows_without_a_propensity_do_not_count():
    happened = torch.arange(400) % 4 == 0
    happened[200:] = True
    rows = _rows(400, lambda row: 0.5 if row < 200 else None)
    check = check_policy_shift(torch.full((400,), 0.25), happened, rows)
    assert (check.effective_sample_size, check.warning) == (pytest.approx(200.0), "")


def test_decisions_that_never_explored_give_a_warning():
    rows = [replace(row, info={"decision": "d"}) for row in _rows(400, lambda _: 1.0)]
    probability, happened = torch.full((400,), 0.25), torch.arange(400) % 4 == 0
    assert "explored" in check_policy_shift(probability, happened, rows).warning
    tried_all = _rows(400, lambda _: 1.0)
    assert check_policy_shift(probability, happened, tried_all).warning == ""


def test_calibrated_uniform_draws_give_no_warning():
    happened = torch.arange(400) % 4 == 0
    check = check_policy_shift(torch.full((400,), 0.25), happened, _rows(400, lambda _: 0.5))
    assert check.ece == pytest.approx(0.0)
    assert check.effective_sample_size == pytest.approx(400.0)
    assert check.warning == ""


def test_a_model_calibrated_only_for_its_own_policy_gives_a_warning():
    """Ninety greedy rows that succeed as predicted, ten random ones that never do."""
    greedy = torch.arange(1000) % 10 != 0
    check = check_policy_shift(
        torch.full((1000,), 0.5),
        greedy & (torch.arange(1000) % 2 == 0),
        _rows(1000, lambda row: 0.9 if row % 10 else 0.01),
    )
    assert check.ece > 0.4
    assert "uniform policy" in check.warning


def test_too_few_random_actions_give_a_warning():
    rows = _rows(500, lambda row: 0.001 if row < 5 else 0.9)
    check = check_policy_shift(torch.full((500,), 0.5), torch.arange(500) % 2 == 0, rows)
    assert "too few" in check.warning


def test_the_weight_of_an_improbable_action_is_bounded():
    rows = _rows(5000, lambda row: 1e-12 if row == 0 else 0.5)
    check = check_policy_shift(torch.full((5000,), 0.5), torch.arange(5000) % 2 == 0, rows)
    assert check.effective_sample_size == pytest.approx(11_000**2 / (1000**2 + 4999 * 4), rel=0.01)


def test_predictions_carry_the_warning_and_it_is_saved(tmp_path):
    spec = TransitionSpec(
        observation={"state": Text(buckets=16)},
        action={},
        targets={"success": Discrete(values=("false", "true"))},
        success=("success", "true"),
    )
    generator = random.Random(0)
    transitions = [
        Transition(
            group=f"g{row // 10}",
            observation={"state": generator.choice(("good", "bad"))},
            action={},
            next_observation={"success": generator.random() < 0.5},
        )
        for row in range(600)
    ]
    model = WorldModel(spec, members=2, hidden=8)
    model.fit(transitions, epochs=1)
    [prediction] = model.predict_batch([{"state": "good"}], [{}])
    assert "propensities" in prediction.reasoning
    model.save(tmp_path)
    [again] = WorldModel.load(tmp_path).predict_batch([{"state": "good"}], [{}])
    assert again.reasoning == prediction.reasoning
