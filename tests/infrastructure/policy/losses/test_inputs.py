import dataclasses
import math

import pytest
import torch

from infrastructure.policy.masked import TokenValueError


def test_advantages_of_sequences_are_those_of_their_tokens(make_inputs):
    mask = [[True, True], [True, False]]
    of_sequences = make_inputs([[1.0, 1.0], [1.0, 1.0]], [2.0, -1.0], mask)
    of_tokens = make_inputs([[1.0, 1.0], [1.0, 1.0]], [[2.0, 2.0], [-1.0, 9.0]], mask)
    for inputs in (of_sequences, of_tokens):
        assert inputs.advantages_BS.tolist() == [[2.0, 2.0], [-1.0, 0.0]]


def test_a_sequence_weighs_the_mean_of_its_tokens_with_dropped_ones_as_zero(make_inputs):
    mask = [[True, True, True, False], [True, True, False, False], [False] * 4]
    weights = [[2.0, 0.0, 1.0, 7.0], [0.5, 0.5, 7.0, 7.0], [7.0] * 4]
    inputs = make_inputs([[1.0] * 4] * 3, [0.0] * 3, mask, weights=weights)
    assert inputs.sequence_weights_B.tolist() == [1.0, 0.5, 0.0]
    assert inputs.kept_BS.tolist() == [
        [True, False, True, False],
        [True, True, False, False],
        [False] * 4,
    ]
    without = dataclasses.replace(inputs, correction=None)
    assert without.sequence_weights_B.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "field", ["log_probs_BS", "old_log_probs_BS", "advantages", "reference_log_probs_BS"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(make_inputs, field, dtype):
    """KL near 5e-7 is 0 in bfloat16, and 5,000 tokens count as 4,992."""
    inputs = make_inputs([[1.0, 1.0]], [1.0], reference=-1.0)
    half = getattr(inputs, field).detach().to(dtype)
    with pytest.raises(TokenValueError, match=f"{field.removesuffix('_BS')}.* is {str(dtype)[6:]}"):
        dataclasses.replace(inputs, **{field: half})


def test_shapes_and_mask_are_checked(make_inputs):
    inputs = make_inputs([[1.0, 1.0]], [1.0])
    with pytest.raises(TokenValueError, match="old_log_probs_BS has the shape"):
        dataclasses.replace(inputs, old_log_probs_BS=torch.zeros(1, 3))
    with pytest.raises(TokenValueError, match="advantages_B has the shape"):
        dataclasses.replace(inputs, advantages=torch.zeros(2))
    with pytest.raises(TokenValueError, match="pass bool"):
        dataclasses.replace(inputs, mask_BS=inputs.mask_BS.double())


def test_a_missing_reference_is_named(make_inputs):
    with pytest.raises(TokenValueError, match="reference_log_probs_BS"):
        _ = make_inputs([[1.0]], [1.0]).reference_log_ratio_BS


def test_log_ratios_ignore_masked_positions(make_inputs):
    inputs = make_inputs([[2.0, math.nan]], [1.0], [[True, False]], reference=math.log(0.125))
    assert inputs.log_ratio_BS.tolist() == [[pytest.approx(math.log(2)), 0.0]]
    assert inputs.reference_log_ratio_BS.tolist() == [[pytest.approx(math.log(4)), 0.0]]
