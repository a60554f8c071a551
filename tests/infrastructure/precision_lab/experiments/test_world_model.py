"""The loss of a job and its gradients, on frozen batches and with any loss scale."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from infrastructure.events import Role
from infrastructure.precision_lab.experiment import in_fp32
from infrastructure.precision_lab.experiments import WorldModelExperiment

pytestmark = pytest.mark.process  # trains for seconds


def _experiment():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
    batches = [{"x": torch.randn(5, 3), "y": torch.randn(5, 1)} for _ in range(2)]
    return WorldModelExperiment(
        models={Role.WORLD_MODEL: model},
        batches=batches,
        loss=lambda forward, batch: (forward(batch["x"]) - batch["y"]).square().mean(),
    )


def test_losses_and_gradients_are_those_of_the_job():
    experiment = _experiment()
    outcome = experiment.run(in_fp32)
    model = experiment.models[Role.WORLD_MODEL]
    losses = torch.stack([experiment.loss(model, each) for each in experiment.batches])
    assert torch.equal(outcome.quantities["loss"], losses.detach())
    expected = torch.autograd.grad(losses.mean(), model[0].weight)[0]
    torch.testing.assert_close(outcome.gradients()["world_model.0.weight"], expected)


def test_a_loss_scale_is_divided_out():
    experiment = _experiment()
    outcomes = [each.run(in_fp32) for each in (experiment, replace(experiment, loss_scale=2.0**16))]
    first, second = (each.gradients() for each in outcomes)
    assert all(torch.equal(first[name], second[name]) for name in first)
