import math

import pytest
import torch

from infrastructure.agent_contract.transition import Transition
from infrastructure.world_model.fitting.ranking_loss import (
    number_states,
    ranking_nll,
    ranking_nlls,
)


def _transition(group, **observation):
    return Transition(group=group, observation=observation, action={})


def test_states_are_equal_where_group_and_observation_are():
    transitions = [
        _transition("a", x=1.0, text=["p", "q"]),
        _transition("a", text=["p", "q"], x=1.0),
        _transition("b", x=1.0, text=["p", "q"]),
        _transition("a", x=2.0, text=["p", "q"]),
    ]
    assert number_states(transitions).tolist() == [0, 0, 1, 2]


def test_only_states_with_success_and_failure_count():
    odds = torch.tensor([0.0, 0.0, 0.0, 5.0, 7.0, 1.0])
    succeeded = torch.tensor([True, False, False, True, True, False])
    state = torch.tensor([0, 0, 0, 1, 1, 2])
    assert ranking_nlls(odds, succeeded, state)[1].tolist() == [True, False, False]
    assert float(ranking_nll(odds, succeeded, state)) == pytest.approx(math.log(3.0))


def test_a_constant_per_state_has_no_effect_and_without_success_the_loss_is_zero():
    generator = torch.Generator().manual_seed(0)
    odds = torch.randn(50, generator=generator, dtype=torch.float64)
    succeeded = torch.rand(50, generator=generator) < 0.3
    state = torch.randint(0, 7, (50,), generator=generator)
    shifted = odds + 100.0 * state
    assert float(ranking_nll(shifted, succeeded, state)) == pytest.approx(
        float(ranking_nll(odds, succeeded, state))
    )
    assert float(ranking_nll(odds, torch.zeros(50, dtype=torch.bool), state)) == 0.0


def test_the_gradient_raises_successes_over_competing_actions_only():
    odds = torch.zeros(4, requires_grad=True)
    ranking_nll(
        odds, torch.tensor([True, False, False, True]), torch.tensor([0, 0, 1, 1])
    ).backward()
    assert odds.grad is not None
    assert odds.grad.tolist() == pytest.approx([-0.25, 0.25, 0.25, -0.25])
