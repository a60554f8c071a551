import pytest

from infrastructure.policy.losses import Clip, dr_grpo_loss, grpo_loss
from infrastructure.policy.losses.reductions import token_mean

RATIOS = [[1.5, 0.9, 1.0], [1.1, 9.0, 9.0]]
ADVANTAGES = [2.0, -3.0]
MASK = [[True, True, True], [True, False, False]]
# Losses of the tokens, -min(r A, clamp(r, 0.8, 1.2) A).
# Row 0: -2.4 (clipped), -1.8, -2. Row 1: 3.3.


def test_value_and_gradient(make_inputs, gradient_of):
    """(-6.2 / 3 + 3.3) / 2. A token that is not clipped has the gradient -r A / (length B)."""
    inputs = make_inputs(RATIOS, ADVANTAGES, MASK)
    loss, stats = grpo_loss(inputs)
    assert loss.item() == pytest.approx((-6.2 / 3 + 3.3) / 2)
    expected = [[0, -1.8 / 6, -2 / 6], [3.3 / 2, 0, 0]]
    for row, wanted in zip(gradient_of(loss, inputs), expected, strict=True):
        assert row == pytest.approx(wanted)
    assert stats["clipped_fraction"].item() == 0.25
    assert stats["ratio_max"].item() == pytest.approx(1.5)


def test_mean_over_tokens(make_inputs):
    loss, _ = grpo_loss(make_inputs(RATIOS, ADVANTAGES, MASK), reduction=token_mean)
    assert loss.item() == pytest.approx((-6.2 + 3.3) / 4)


def test_dr_grpo_divides_by_one_constant(make_inputs, gradient_of):
    """(-6.2 + 3.3) / (5 * 2): every token of every sequence has the weight 1/10."""
    inputs = make_inputs(RATIOS, ADVANTAGES, MASK)
    loss, _ = dr_grpo_loss(inputs, max_length=5)
    assert loss.item() == pytest.approx(-0.29)
    expected = [[0, -0.18, -0.2], [0.33, 0, 0]]
    for row, wanted in zip(gradient_of(loss, inputs), expected, strict=True):
        assert row == pytest.approx(wanted)


def test_a_correction_weights_tokens_and_keeps_the_denominators(make_inputs, gradient_of):
    """Row 0: (-2.4 * 0.5 - 1.8 * 2) / 3, its last token is dropped; row 1 is dropped: 0."""
    weights = [[0.5, 2.0, 0.0], [0.0, 7.0, 7.0]]
    inputs = make_inputs(RATIOS, ADVANTAGES, MASK, weights=weights)
    loss, _ = grpo_loss(inputs)
    assert loss.item() == pytest.approx(-4.8 / 3 / 2)
    gradient = gradient_of(loss, inputs)
    assert gradient[0] == pytest.approx([0, -3.6 / 6, 0])
    assert gradient[1] == [0, 0, 0]


def test_gradients(make_inputs, gradient_is_that_of_finite_differences):
    inputs = make_inputs(RATIOS, ADVANTAGES, MASK, weights=[[0.5, 2.0, 0.0], [1.3, 0.0, 0.0]])
    for loss in (
        grpo_loss,
        lambda inputs: grpo_loss(inputs, Clip(low=0.05, high=0.3, dual=3.0), reduction=token_mean),
        lambda inputs: dr_grpo_loss(inputs, max_length=7),
    ):
        gradient_is_that_of_finite_differences(loss, inputs)


def test_on_policy_the_gradient_is_that_of_reinforce(make_inputs, gradient_of):
    """At r = 1 the gradient of a token is -A / (length B), whatever the clip."""
    inputs = make_inputs([[1.0, 1.0], [1.0, 1.0]], [2.0, -4.0])
    loss, _ = grpo_loss(inputs, Clip(low=0.0, high=0.1))
    assert gradient_of(loss, inputs) == [[-0.5, -0.5], [1.0, 1.0]]
