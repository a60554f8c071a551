import math

import pytest
import torch

from infrastructure.policy.losses.surrogate import Clip, clipped_surrogate, largest

RATIO = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
ADVANTAGES = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0])


def test_clipping_ends_the_gain_and_never_the_loss():
    """-min(r A, clamp(r, 0.8, 1.2) A).

    1.5 * 2 = 3 against 1.2 * 2 = 2.4; 1.5 * -2 = -3 against -2.4; 0.5 * 2 = 1 against 1.6;
    0.5 * -2 = -1 against -1.6; 1.1 is in range.
    """
    loss, clipped = clipped_surrogate(RATIO, ADVANTAGES, Clip())
    assert loss.tolist() == pytest.approx([-2.4, 3.0, -1.0, 1.6, -2.2])
    assert clipped.tolist() == [True, False, False, True, False]


def test_the_range_may_differ_above_and_below():
    loss, _ = clipped_surrogate(RATIO, ADVANTAGES, Clip(low=0.4, high=0.3))
    assert loss.tolist() == pytest.approx([-2.6, 3.0, -1.0, 1.2, -2.2])


def test_a_dual_clip_bounds_the_loss_of_a_bad_token_that_became_likely():
    ratio = torch.tensor([5.0, 5.0], requires_grad=True)
    loss, clipped = clipped_surrogate(ratio, torch.tensor([-2.0, 2.0]), Clip(dual=3.0))
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([6.0, -2.4])  # 3 * 2 instead of 5 * 2
    assert clipped.all()
    assert ratio.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "options", [{"low": 1.5}, {"low": -0.1}, {"high": -0.1}, {"high": math.nan}, {"dual": 1.1}]
)
def test_impossible_ranges_are_refused(options):
    with pytest.raises(ValueError, match=r"got|above"):
        Clip(**options)


def test_largest_of_nothing_is_zero():
    values = torch.tensor([[-3.0, 7.0]])
    assert largest(values, torch.tensor([[True, False]])) == -3
    assert largest(values, torch.zeros(1, 2, dtype=torch.bool)) == 0
