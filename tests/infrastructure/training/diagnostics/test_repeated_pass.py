"""That passes leave the model as it is: see ``test_fp32_shadow.py``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from infrastructure.training.diagnostics import RepeatedPasses
from infrastructure.training.inputs import random_state
from infrastructure.training.precision import Precision
from tests.infrastructure.training.overflowing import Scaled

CPU = torch.device("cpu")


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(5)
    layers = (nn.Linear(4, 16), nn.Dropout(0.5), nn.SiLU(), nn.Linear(16, 1))
    return nn.Sequential(*layers).train()


def test_a_pass_is_the_one_that_training_makes(model, loss_fn, batch):
    state = random_state(CPU)
    loss = loss_fn(copy.deepcopy(model), batch)
    found = RepeatedPasses(model, loss_fn, CPU).run(batch, Precision.FP32, 8.0, state, dropout=True)
    assert found.loss == loss.item()
    assert found.drew_random
    trained = copy.deepcopy(model)
    torch.set_rng_state(state["torch"])
    (loss_fn(trained, batch) * 8.0).backward()
    expected = [each.grad for each in trained.parameters()]
    assert all(map(torch.equal, found.gradients, expected))


def test_without_dropout_nothing_is_drawn(model, loss_fn, batch):
    found = RepeatedPasses(model, loss_fn, CPU).run(batch, Precision.FP16, 1.0, random_state(CPU))
    assert found.loss == pytest.approx(loss_fn(model.eval(), batch).item(), rel=1e-2)
    assert not found.drew_random


def test_only_parameters_that_are_trained_have_gradients(model, loss_fn, batch):
    model[0].weight.requires_grad_(False)
    passes = RepeatedPasses(model, loss_fn, CPU)
    assert passes.modules == ["0 (Linear)", "3 (Linear)", "3 (Linear)"]
    found = passes.run(batch, Precision.FP32, 1.0, random_state(CPU))
    shapes = [each.shape for each in found.gradients]
    assert shapes == [each.shape for each in passes.parameters]


def test_a_traced_pass_names_where_it_leaves_the_range(loss_fn, batch):
    passes = RepeatedPasses(nn.Sequential(nn.Linear(4, 1), Scaled(1e8)), loss_fn, CPU)
    origins = passes.trace(batch, Precision.FP16, 1.0, random_state(CPU))
    assert str(origins.first) == str(origins.forward) == "mul.Tensor in 1 (Scaled)"
    fp32 = passes.trace(batch, Precision.FP32, 1.0, random_state(CPU))
    assert fp32.first is None
