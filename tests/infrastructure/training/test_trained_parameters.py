from __future__ import annotations

import pytest
import torch
from torch import nn

from infrastructure.training import MultiOptimizer
from infrastructure.training.trained_parameters import device_of, trained_parameters


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_frozen_parameters_are_among_them() -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    assert trained_parameters(model, sgd(model)) == [model.weight, model.bias]


def test_half_parameters_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).half())
    with pytest.raises(ValueError, match=r"1\.weight is torch\.float16: .*float32"):
        trained_parameters(model, sgd(model))


def test_parameters_of_another_model_are_refused_by_shape() -> None:
    other = nn.Linear(3, 1)
    with pytest.raises(ValueError, match=r"2 of .* 2 .*\(1, 3\)"):
        trained_parameters(nn.Linear(2, 1), sgd(other))


def test_a_parameter_of_two_members_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    both = MultiOptimizer(
        torch.optim.Muon([model[0].weight]), torch.optim.AdamW(model.parameters())
    )
    with pytest.raises(ValueError, match=r"0\.weight is in two optimizers, Muon and AdamW.*leave"):
        trained_parameters(model, both)


def test_an_optimizer_that_updates_nothing_is_refused() -> None:
    model = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(ValueError, match="updates no parameter"):
        trained_parameters(model, sgd(model))


def test_a_model_on_two_devices_or_none_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, device="meta"))
    with pytest.raises(ValueError, match=r"found cpu, meta: .*model\.to"):
        device_of(model)
    with pytest.raises(ValueError, match="no parameters"):
        device_of(nn.ReLU())
