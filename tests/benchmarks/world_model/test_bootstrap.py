"""The paired bootstrap finds a difference that is there, and none that is not."""

import numpy as np
import pytest

from benchmarks.world_model.bootstrap import GroupLosses


def compared(mine, theirs, groups=None):
    groups = groups or [str(number) for number in range(len(mine))]
    return GroupLosses.of_rows(groups, {"mine": np.array(mine), "theirs": np.array(theirs)})


def test_losses_are_added_up_by_group():
    losses = compared([1.0, 2.0, 4.0], [0.0, 0.0, 3.0], ["b", "a", "b"])
    assert losses.groups == ["a", "b"]
    assert losses.rows.tolist() == [1, 2]
    assert losses.sums["mine"].tolist() == [2.0, 5.0]
    assert losses.figure("mine", np.asarray) == pytest.approx(7 / 3)
    assert losses.figure("mine", np.sqrt) == pytest.approx((7 / 3) ** 0.5)


def test_a_constant_gain_is_certain():
    """Pairs cancel what rows have in common, however much the rows differ."""
    theirs = np.random.default_rng(0).exponential(10.0, size=50)
    interval = compared(theirs - 0.5, theirs).difference("mine", "theirs", np.asarray)
    assert interval.figure == pytest.approx(-0.5)
    assert interval.low == pytest.approx(-0.5)
    assert interval.high == pytest.approx(-0.5)


def test_noise_is_no_difference():
    generator = np.random.default_rng(1)
    interval = compared(generator.normal(size=200), generator.normal(size=200)).difference(
        "mine", "theirs", np.asarray
    )
    assert interval.low < 0 < interval.high


def test_groups_are_drawn_whole():
    """Hundred copies of a row in its group leave the interval as wide as it was."""
    mine, theirs = np.array([1.0, 0.0, 3.0, 1.0]), np.array([0.5, 0.5, 1.0, 2.0])
    alone = compared(mine, theirs).difference("mine", "theirs", np.asarray)
    groups = [str(number) for number in range(4) for _ in range(100)]
    copied = compared(np.repeat(mine, 100), np.repeat(theirs, 100), groups).difference(
        "mine", "theirs", np.asarray
    )
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))


def test_a_group_of_two_seeds_is_drawn_together():
    losses = compared([1.0, 0.0, 3.0], [0.5, 0.5, 1.0])
    twice = losses.joined(losses)
    assert len(twice.groups) == 6
    alone = losses.difference("mine", "theirs", np.asarray)
    both = twice.difference("mine", "theirs", np.asarray)
    assert (both.low, both.high) == pytest.approx((alone.low, alone.high))
