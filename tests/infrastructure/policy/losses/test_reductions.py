from functools import partial

import pytest
import torch

from infrastructure.policy.losses.reductions import constant_length, sequence_mean, token_mean

# Rows of one, three and no tokens: sums 6, 6 and 0; means 6, 2 and 0.
VALUES_BS = torch.tensor([[6.0, 9.0, 9.0], [1.0, 2.0, 3.0], [9.0, 9.0, 9.0]])
MASK_BS = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])


def test_each_token_each_sequence_or_each_step_counts_the_same():
    assert token_mean(VALUES_BS, MASK_BS) == 3  # 12 / 4 tokens
    assert sequence_mean(VALUES_BS, MASK_BS) == 4  # (6 + 2) / 2 sequences
    assert constant_length(VALUES_BS, MASK_BS, max_length=4) == 1.5  # 12 / 4 / 2 sequences


def test_the_padded_width_does_not_matter():
    wide = torch.nn.functional.pad(VALUES_BS, (5, 0)), torch.nn.functional.pad(MASK_BS, (5, 0))
    for reduction in (token_mean, sequence_mean, partial(constant_length, max_length=4)):
        assert reduction(*wide) == reduction(VALUES_BS, MASK_BS)


@pytest.mark.parametrize(
    ("reduction", "whole"),
    [
        (token_mean, 4 / 2),
        (sequence_mean, 2 / 2),
        (partial(constant_length, max_length=3), 2 / 2),
    ],
)
def test_micro_batches_add_up_to_the_step_only_with_its_denominator(reduction, whole):
    """The mean of means over micro-batches of 1 and 3 tokens is not the mean over 4 tokens."""
    step = reduction(VALUES_BS, MASK_BS)
    micro = [(VALUES_BS[:1], MASK_BS[:1]), (VALUES_BS[1:], MASK_BS[1:])]
    with_denominator = sum(reduction(*each, denominator=whole) for each in micro) / 2
    assert with_denominator == pytest.approx(step)
    if reduction is token_mean:
        assert sum(reduction(*each) for each in micro) / 2 == 4  # (6 + 2) / 2


def test_no_token_at_all_is_zero():
    nothing_BS = torch.zeros_like(MASK_BS)
    for reduction in (token_mean, sequence_mean, partial(constant_length, max_length=4)):
        assert reduction(VALUES_BS, nothing_BS) == 0
        assert reduction(VALUES_BS, nothing_BS, denominator=0) == 0


def test_constant_length_needs_a_length():
    with pytest.raises(ValueError, match="max_length"):
        constant_length(VALUES_BS, MASK_BS, max_length=0)
