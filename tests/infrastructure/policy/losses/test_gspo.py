import math

import pytest

from infrastructure.policy.losses import Clip, gspo_loss

# Row 0: ratios 2 and 1/2, mean log-ratio 0, s = 1. Row 1: ratios 4 and 1, s = exp(log(4) / 2) = 2.
RATIOS = [[2.0, 0.5, 9.0], [4.0, 1.0, 9.0]]
MASK = [[True, True, False], [True, True, False]]
WIDE = Clip(low=0.9, high=9.0)


def test_value_and_gradient(make_inputs, gradient_of):
    """(-(1 * 3) - (2 * -1)) / 2. The gradient of each token is -s A / (length B)."""
    inputs = make_inputs(RATIOS, [3.0, -1.0], MASK)
    loss, stats = gspo_loss(inputs, WIDE)
    assert loss.item() == pytest.approx(-0.5)
    gradient = gradient_of(loss, inputs)
    assert gradient[0] == pytest.approx([-0.75, -0.75, 0])
    assert gradient[1] == pytest.approx([0.5, 0.5, 0])
    assert stats["ratio_max"].item() == pytest.approx(2.0)


def test_the_ratio_is_of_the_mean_of_log_ratios_not_of_their_sum(make_inputs):
    """Eighty log-ratios of -0.007: the sum gives 0.571, the mean 0.993 (trl#5814: 0.569, 0.993)."""
    inputs = make_inputs([[math.exp(-0.007)] * 80], [-1.0])
    loss, _ = gspo_loss(inputs, WIDE)
    assert loss.item() == pytest.approx(math.exp(-0.007))
    assert math.exp(80 * -0.007) == pytest.approx(0.571, abs=1e-3)


def test_the_whole_sequence_is_clipped(make_inputs, gradient_of):
    """s = 2 with A = 3 is clipped at 1.0004; the gradient of all its tokens is zero."""
    inputs = make_inputs(RATIOS, [3.0, 3.0], MASK)
    loss, stats = gspo_loss(inputs)
    assert loss.item() == pytest.approx((-3 - 3 * 1.0004) / 2)
    assert gradient_of(loss, inputs)[1] == [0, 0, 0]
    assert stats["clipped_fraction"].item() == 0.5


def test_a_correction_leaves_its_tokens_out_of_the_ratio(make_inputs, gradient_of):
    """Row 1 keeps its first token with the weight 0.6: s = 4, times (0.6 + 0) / 2 = 0.3."""
    weights = [[1.0, 1.0, 0.0], [0.6, 0.0, 0.0]]
    inputs = make_inputs(RATIOS, [3.0, -1.0], MASK, weights=weights)
    loss, _ = gspo_loss(inputs, WIDE)
    assert loss.item() == pytest.approx((-3 + 0.3 * 4) / 2)
    assert gradient_of(loss, inputs)[1] == pytest.approx([0.6, 0, 0])


def test_gradients(make_inputs, gradient_is_that_of_finite_differences):
    inputs = make_inputs(RATIOS, [3.0, -1.0], MASK, weights=[[1.0, 0.7, 0.0], [0.6, 0.0, 0.0]])
    gradient_is_that_of_finite_differences(lambda inputs: gspo_loss(inputs, WIDE), inputs)


def test_the_denominator_of_a_whole_step(make_inputs):
    inputs = make_inputs(RATIOS, [3.0, -1.0], MASK)
    assert gspo_loss(inputs, WIDE, denominator=4).loss.item() == pytest.approx(-0.25)
