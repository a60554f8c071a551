import math

import pytest
import torch

from infrastructure.policy.losses.advantages import (
    dr_grpo_advantages,
    final_rewards,
    generalized_advantages,
    grpo_advantages,
    reinforce_plus_plus_advantages,
    rloo_advantages,
    whitened,
)
from infrastructure.policy.masked import TokenValueError, masked_mean

GROUP = (grpo_advantages, dr_grpo_advantages, rloo_advantages)


def test_advantages_of_two_interleaved_groups():
    """Group 7 has the rewards 1, 0, 0, 1: mean 1/2, variance (4 * 1/4) / 3 = 1/3.

    Group 2 has 3 and 1: mean 2, variance (1 + 1) / 1 = 2. The mean of the others is, for a reward
    of 1 in group 7, 1/3; for the 3 in group 2, 1.
    """
    rewards_B = torch.tensor([1.0, 3.0, 0.0, 0.0, 1.0, 1.0])
    groups_B = torch.tensor([7, 2, 7, 7, 2, 7])
    half, root = 0.5 * math.sqrt(3), 1 / math.sqrt(2)
    assert grpo_advantages(rewards_B, groups_B).tolist() == pytest.approx(
        [half, root, -half, -half, -root, half], abs=1e-5
    )
    assert dr_grpo_advantages(rewards_B, groups_B).tolist() == [0.5, 1.0, -0.5, -0.5, -1.0, 0.5]
    assert rloo_advantages(rewards_B, groups_B).tolist() == pytest.approx(
        [2 / 3, 2.0, -2 / 3, -2 / 3, -2.0, 2 / 3]
    )


@pytest.mark.parametrize("advantages", GROUP)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_groups_without_information_get_exactly_zero(advantages, dtype):
    """The mean of seven times 0.1 is not 0.1 in float32: its error must not become a signal."""
    rewards_B = torch.tensor([0.1] * 7 + [5.0], dtype=dtype)
    groups_B = torch.tensor([0] * 7 + [1])
    assert advantages(rewards_B, groups_B).tolist() == [0.0] * 8


@pytest.mark.parametrize("advantages", GROUP)
def test_rewards_are_checked(advantages):
    groups_B = torch.tensor([0, 0])
    with pytest.raises(ValueError, match=r"completions \[1\]"):
        advantages(torch.tensor([1.0, math.nan]), groups_B)
    with pytest.raises(TokenValueError, match="rewards_B is float16"):
        advantages(torch.zeros(2, dtype=torch.float16), groups_B)
    with pytest.raises(TokenValueError, match=r"int64; .*rewards_B\.float\(\)$"):
        advantages(torch.tensor([1, 0]), groups_B)
    with pytest.raises(ValueError, match="2 rewards"):
        advantages(torch.zeros(2), torch.zeros(2))


def test_extreme_rewards_stay_finite():
    rewards_B = torch.tensor([1e18, -1e18, 1e-30, 0.0])
    for advantages in GROUP:
        assert advantages(rewards_B, torch.tensor([0, 0, 1, 1])).isfinite().all()


def test_reward_is_placed_by_the_mask_not_by_the_count():
    """Left padding and a gap: the last valid token of row 0 is at column 3, and it has two."""
    mask_BS = torch.tensor([[False, True, False, True, False], [False] * 5, [True] * 5])
    rewards_BS = final_rewards(torch.tensor([2.0, 3.0, 4.0]), mask_BS)
    assert rewards_BS.tolist() == [[0, 0, 0, 2.0, 0], [0] * 5, [0, 0, 0, 0, 4.0]]


def test_generalised_advantages():
    """Discount 1/2, λ 1/2; row 1 is row 0 with a token of a tool between its two.

    Last token: δ = 2 + 0 - 1 = 1, A = 1, return 2. First: δ = 0 + 1/2 * 1 - 3 = -5/2,
    A = -5/2 + 1/4 * 1 = -9/4, return -9/4 + 3 = 3/4.
    """
    mask_BS = torch.tensor([[True, True, False], [True, False, True]])
    rewards_BS = torch.tensor([[0.0, 2.0, math.nan], [0.0, math.nan, 2.0]])
    values_BS = torch.tensor([[3.0, 1.0, math.nan], [3.0, 50.0, 1.0]])
    advantages_BS, returns_BS = generalized_advantages(
        rewards_BS, values_BS, mask_BS, discount=0.5, gae_lambda=0.5
    )
    assert advantages_BS.tolist() == [[-2.25, 1.0, 0.0], [-2.25, 0.0, 1.0]]
    assert returns_BS.tolist() == [[0.75, 2.0, 0.0], [0.75, 0.0, 2.0]]


def test_lambda_one_is_return_minus_value():
    mask_BS = torch.ones(1, 4, dtype=torch.bool)
    rewards_BS, values_BS = torch.randn(1, 4).double(), torch.randn(1, 4).double()
    advantages_BS, returns_BS = generalized_advantages(
        rewards_BS, values_BS, mask_BS, discount=1.0, gae_lambda=1.0
    )
    to_go_BS = rewards_BS.flip(1).cumsum(1).flip(1)
    assert torch.allclose(returns_BS, to_go_BS)
    assert torch.allclose(advantages_BS, to_go_BS - values_BS)


def test_neither_loss_reaches_the_values_that_advantages_came_from():
    values_BS = torch.randn(2, 3, requires_grad=True)
    mask_BS = torch.ones(2, 3, dtype=torch.bool)
    results = generalized_advantages(torch.randn(2, 3), values_BS, mask_BS)
    assert not any(result.requires_grad for result in (*results, whitened(values_BS, mask_BS)))


def test_whitening_weights_tokens_not_sequences():
    """Tokens 0, 2 | 4, 4, 0: mean 2 (the mean of the rows' means is 11/6), variance 16/4 = 4."""
    mask_BS = torch.tensor([[True, True, False], [True, True, True]])
    advantages_BS = torch.tensor([[0.0, 2.0, 99.0], [4.0, 4.0, 0.0]])
    white_BS = whitened(advantages_BS, mask_BS)
    assert white_BS.tolist() == [[-1.0, 0.0, 0.0], [1.0, 1.0, -1.0]]
    assert masked_mean(white_BS, mask_BS) == 0


def test_whitening_without_variance_is_zero():
    mask_BS = torch.tensor([[True, False]])
    assert whitened(torch.full((1, 2), 3.0), mask_BS).tolist() == [[0.0, 0.0]]
    assert whitened(torch.full((1, 2), 3.0), ~mask_BS & False).tolist() == [[0.0, 0.0]]


def test_reinforce_plus_plus_subtracts_the_divergence_that_is_still_to_come():
    """With β = 1/2: 1 - 0.6/2 and 1 - 0.4/2 in the first row, twice 0 - 0.8/2 in the second.

    0.7, 0.8, -0.4, -0.4 have the mean 0.175 and the variance 1.3275 / 3 = 0.4425.
    """
    mask_BS = torch.tensor([[True, True, False], [False, True, True]])
    old_BS = torch.tensor([[-1.0, -1.0, torch.nan], [torch.inf, -1.0, -1.0]])
    reference_BS = torch.tensor([[-1.2, -1.4, 0.0], [0.0, -1.0, -1.8]])
    advantages_BS = reinforce_plus_plus_advantages(
        torch.tensor([1.0, 0.0]), old_BS, reference_BS, mask_BS, kl_coefficient=0.5
    )
    root = 0.4425**0.5
    assert advantages_BS[0].tolist() == pytest.approx([0.525 / root, 0.625 / root, 0.0], abs=1e-6)
    assert advantages_BS[1].tolist() == pytest.approx([0.0, -0.575 / root, -0.575 / root], abs=1e-6)
