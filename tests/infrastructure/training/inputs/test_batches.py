from __future__ import annotations

import torch

from infrastructure.training.inputs import to_device


def test_every_tensor_of_a_batch_moves():
    batch = {"x": torch.ones(2), "y": torch.zeros(3)}
    moved = to_device(batch, torch.device("meta"))
    assert {name: tensor.device.type for name, tensor in moved.items()} == {
        "x": "meta",
        "y": "meta",
    }
