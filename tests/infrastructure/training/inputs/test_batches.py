from __future__ import annotations

import pytest
import torch

from infrastructure.training.inputs import to_device
from infrastructure.training.inputs.batches import BatchTypeError


def test_every_tensor_of_a_batch_moves():
    batch = {"x": torch.ones(2), "y": torch.zeros(3)}
    moved = to_device(batch, torch.device("meta"))
    assert {name: tensor.device.type for name, tensor in moved.items()} == {
        "x": "meta",
        "y": "meta",
    }


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ((torch.ones(2), torch.zeros(2)), "got tuple"),
        (torch.ones(2), "got Tensor"),
        ({"x": torch.ones(2), "rows": [1, 2]}, "got one whose 'rows' is a list"),
    ],
)
def test_a_batch_of_another_type_is_refused_with_words(batch, got):
    with pytest.raises(BatchTypeError, match=got):
        to_device(batch, torch.device("cpu"))
