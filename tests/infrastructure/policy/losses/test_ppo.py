import pytest
import torch

from infrastructure.policy.losses import ppo_loss, value_loss
from infrastructure.policy.masked import TokenValueError

MASK_BS = torch.tensor([[True, True, True, False]])
# Old value 1, clip 0.2. Errors of the value and of the value within [0.8, 1.2]:
#   2.0, return 3: 1 and 1.8² = 3.24, the larger one: no gradient, it has moved enough
#   2.0, return 0: 4 and 1.2² = 1.44: moved away from its return, full gradient
#   1.1, return 2: 0.81 and 0.81
VALUES = [[2.0, 2.0, 1.1, 9.0]]
RETURNS_BS = torch.tensor([[3.0, 0.0, 2.0, 9.0]], dtype=torch.float64)
OLD_BS = torch.ones(1, 4, dtype=torch.float64)


@pytest.fixture
def values_BS():
    return torch.tensor(VALUES, dtype=torch.float64, requires_grad=True)


def test_policy_loss_has_an_advantage_per_token(make_inputs, gradient_of):
    """Tokens: -min(1.5 * 2, 1.2 * 2) = -2.4; -min(0.5 * -1, 0.8 * -1) = 0.8; -1 * 0.5 = -0.5."""
    inputs = make_inputs([[1.5, 0.5, 1.0]], [[2.0, -1.0, 0.5]])
    loss, _ = ppo_loss(inputs)
    assert loss.item() == pytest.approx(-2.1 / 3)
    assert gradient_of(loss, inputs)[0] == pytest.approx([0, 0, -0.5 / 3])


def test_policy_gradients(make_inputs, gradient_is_that_of_finite_differences):
    inputs = make_inputs([[1.5, 0.5, 1.1]], [[2.0, -1.0, 0.5]], [[True, False, True]])
    gradient_is_that_of_finite_differences(ppo_loss, inputs)


def test_value_loss(values_BS):
    loss, stats = value_loss(values_BS, OLD_BS, RETURNS_BS, MASK_BS)
    assert loss.item() == pytest.approx((3.24 + 4 + 0.81) / 2 / 3)
    (gradient_BS,) = torch.autograd.grad(loss, values_BS)
    assert gradient_BS[0].tolist() == pytest.approx([0, 2 / 3, -0.9 / 3, 0])
    assert stats["value_clipped_fraction"].item() == pytest.approx(1 / 3)


def test_without_clip_it_is_half_the_squared_error(values_BS):
    loss, _ = value_loss(values_BS, OLD_BS, RETURNS_BS, MASK_BS, clip=None)
    assert loss.item() == pytest.approx((1 + 4 + 0.81) / 2 / 3)


def test_value_gradients(values_BS):
    start_BS = torch.tensor([[2.0, 2.0, 1.13, 9.0]], dtype=torch.float64, requires_grad=True)
    for clip in (0.2, None):
        assert torch.autograd.gradcheck(
            lambda values_BS, clip=clip: value_loss(
                values_BS, OLD_BS, RETURNS_BS, MASK_BS, clip=clip
            )[0],
            (start_BS,),
        )


def test_targets_are_detached(values_BS):
    targets_BS = RETURNS_BS.clone().requires_grad_()
    old_BS = OLD_BS.clone().requires_grad_()
    value_loss(values_BS, old_BS, targets_BS, MASK_BS).loss.backward()
    assert targets_BS.grad is None
    assert old_BS.grad is None


def test_values_in_half_precision_are_refused(values_BS):
    with pytest.raises(TokenValueError, match="values_BS is bfloat16"):
        value_loss(values_BS.bfloat16(), OLD_BS, RETURNS_BS, MASK_BS)


def test_masked_garbage_is_ignored():
    values_BS = torch.tensor([[2.0, torch.nan]], requires_grad=True)
    mask_BS = torch.tensor([[True, False]])
    garbage_BS = torch.tensor([[1.0, torch.inf]])
    loss, _ = value_loss(values_BS, garbage_BS, garbage_BS, mask_BS)
    loss.backward()
    assert loss.item() == 0.5  # max((2 - 1)², (1.2 - 1)²) / 2
    assert values_BS.grad.tolist() == [[1.0, 0.0]]
