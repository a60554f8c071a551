from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from infrastructure.fleet import Fleet, FleetMember, StackableLoss
from infrastructure.fleet.forms import Outputs
from infrastructure.fleet.losses import (
    PendingLoss,
    PendingOutput,
    are_alike,
    cross_entropy_of_each,
    mean_of_each,
    stacked_loss_agrees,
)
from infrastructure.training import FP16Trainer, FP16TrainingConfig

VALUES, LABELS = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: functional.mse_loss(out, VALUES),
        lambda out: functional.mse_loss(input=out, target=VALUES),
        lambda out: nn.MSELoss()(out, VALUES),
        lambda out: functional.cross_entropy(out, LABELS),
        lambda out: nn.CrossEntropyLoss()(out, LABELS),
    ],
)
def test_losses_of_torch_are_known(loss):
    pending = loss(PendingOutput())
    assert isinstance(pending, PendingLoss)
    output = torch.randn(4, 3)
    assert torch.equal(pending.loss(output, pending.targets), loss(output))


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: functional.mse_loss(out, VALUES, reduction="sum"),
        lambda out: functional.mse_loss(out, VALUES, weight=VALUES),
        lambda out: functional.mse_loss(VALUES, out),
        lambda out: functional.mse_loss(out, out),
        lambda out: functional.cross_entropy(out, LABELS, label_smoothing=0.1),
        lambda out: functional.cross_entropy(out, LABELS, weight=torch.ones(3)),
        lambda out: functional.l1_loss(out, VALUES),
        lambda out: (out - VALUES).square().mean(),
        lambda out: functional.mse_loss(out, VALUES) * 0.5,
        lambda out: functional.mse_loss(out[:, 0], VALUES[:, 0]),
        lambda out: functional.mse_loss(out["mean"], VALUES),
    ],
)
def test_any_other_use_of_a_pending_output_raises(loss):
    with pytest.raises((TypeError, AttributeError)):
        loss(PendingOutput())


@pytest.mark.parametrize(("rows", "agrees"), [(32, True), (33, False)])
def test_a_stacked_loss_is_tried(rows, agrees):
    """With 33 rows another element is in the remainder, where an exponential may differ."""
    outputs = Outputs(raw=torch.zeros(3, rows, 3), structure=lambda raw: raw)
    pending = [functional.mse_loss(PendingOutput(), torch.randn(rows, 3)) for _ in range(3)]
    assert stacked_loss_agrees(pending, outputs) is agrees


def test_a_stacked_loss_that_differs_does_not_agree():
    loss = StackableLoss(
        alone=lambda out, _: out.mean(), stacked=lambda out, _: out.flip(1).cumsum(1)[:, -1] / 64
    )
    outputs = Outputs(raw=torch.zeros(3, 64), structure=lambda raw: raw)
    pending = [loss(PendingOutput(), {"y": torch.zeros(1)}) for _ in range(3)]
    assert not stacked_loss_agrees(pending, outputs)


def test_losses_of_other_targets_are_not_stacked():
    def pending(target):
        return functional.mse_loss(PendingOutput(), target)

    first = pending(VALUES)
    assert are_alike([first, first])
    assert are_alike([first, pending(VALUES + 1.0)])
    assert not are_alike([first, pending(VALUES[:2])])
    assert not are_alike([first, pending(VALUES.double())])
    assert not are_alike([first, pending(torch.zeros(3, 4).mT)])
    assert not are_alike([first, functional.cross_entropy(PendingOutput(), LABELS)])


def test_a_mean_and_a_cross_entropy_of_each_are_those_alone():
    value = torch.randn(5, 33, 7)
    assert torch.equal(mean_of_each(value), torch.stack([each.mean() for each in value]))
    labels = torch.randint(7, (5, 33))
    alone = [functional.cross_entropy(*pair) for pair in zip(value, labels, strict=True)]
    assert torch.equal(cross_entropy_of_each(value, labels), torch.stack(alone))


def test_a_known_loss_is_called_once_per_step():
    calls = []

    def loss(name, forward, batch):
        calls.append(name)
        return functional.mse_loss(forward(batch["x"]), batch["y"])

    fleet = Fleet()
    for name in ("a", "b"):
        model = nn.Sequential(nn.Linear(16, 16))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(precision="fp32"))
        fleet.join(name, FleetMember(trainer=trainer, loss=partial(loss, name)))
    batches = {name: {"x": torch.randn(32, 16), "y": torch.randn(32, 16)} for name in "ab"}
    for step in range(3):
        fleet.step(batches)
        assert calls == (["a", "b", "a", "b"] if step == 0 else ["a", "b"])
        calls.clear()
