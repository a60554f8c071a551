"""Outcomes are checked: nothing in half precision, and token values only with their mask."""

import pytest
import torch

from infrastructure.precision_lab.experiment import ExperimentResult, ExperimentResultError

MASK_BS = torch.tensor([[True, False]])


def test_gradients_are_found_by_the_name_of_their_parameter():
    outcome = ExperimentResult(
        quantities={"loss": torch.ones(1), "gradient:head.weight": torch.ones(2, 2)},
        mask_BS=MASK_BS,
    )
    assert list(outcome.gradients()) == ["head.weight"]


@pytest.mark.parametrize(
    ("value", "mask_BS", "message"),
    [
        (torch.ones(1, dtype=torch.bfloat16), MASK_BS, "values is torch.bfloat16 on cpu"),
        (torch.ones(1, 2), None, r"\(1, 2\): .*mask"),
        (torch.ones(1, 3), MASK_BS, r"\(1, 3\): .*mask"),
    ],
)
def test_quantities_that_metrics_cannot_use_are_refused(value, mask_BS, message):
    with pytest.raises(ExperimentResultError, match=message):
        ExperimentResult(quantities={"values": value}, mask_BS=mask_BS)
