import pytest
import torch

from infrastructure.world_model.planning.returns import Scores, discounted_sum


def test_disagreement_has_a_price():
    returns_MN = torch.tensor([[3.0, 0.5], [-1.0, 0.5]], dtype=torch.float64)
    free, dear = Scores.of(returns_MN, 0.0), Scores.of(returns_MN, 1.0)
    assert free.mean.tolist() == [1.0, 0.5]
    assert free.sd.tolist() == [2.0, 0.0]
    assert free.score.tolist() == [1.0, 0.5]
    assert dear.score.tolist() == [-1.0, 0.5]


def test_a_return_that_is_not_finite_is_the_worst():
    returns_MN = torch.tensor([[torch.nan, torch.inf, -1e9]], dtype=torch.float64)
    assert Scores.of(returns_MN, 0.5).score.tolist() == [-torch.inf, -torch.inf, -1e9]


def test_later_rewards_count_less():
    reward_HMN = torch.tensor([[[1.0]], [[2.0]], [[4.0]]])
    assert float(discounted_sum(reward_HMN, 0.5)) == pytest.approx(1 + 1 + 1)
    assert float(discounted_sum(reward_HMN, 1.0)) == pytest.approx(7)
