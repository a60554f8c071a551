"""Parameters frozen, unfrozen and added while they are trained: as in a hand-written loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, NAdam

from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision

KINDS = {
    "adamw": lambda p: AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: Adagrad(p, lr=0.01, fused=True),
    "sgd": lambda p: SGD(p, lr=0.01, momentum=0.9, fused=True),
    "nadam": lambda p: NAdam(p, lr=0.01),
}
STEPS, CHANGE_AT = 12, 4


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 4, generator=generator), torch.randn(16, 1, generator=generator)


def loss_of(forward, data):
    return (forward(data[0]) - data[1]).square().mean()


def by_hand(model, optimizer, change):
    for step in range(STEPS):
        if step == CHANGE_AT:
            change(model, optimizer)
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        optimizer.step()
    return model


def make_trainer(model, optimizer, precision="fp32", **config):
    config = {"max_grad_norm": None, "loss_scale": 1024.0, "cpu_half": True, **config}
    return FP16Trainer(
        model, optimizer, FP16TrainingConfig(precision=Precision(precision), **config)
    )


def by_trainer(trainer, change):
    for step in range(STEPS):
        if step == CHANGE_AT:
            change(trainer.model, trainer.optimizer)
        trainer.step(trainer.training_step(batch(step), loss_of))
    return trainer.model


def gap(model, other):
    other = other.state_dict() if isinstance(other, nn.Module) else other
    pairs = zip(model.state_dict().values(), other.values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def freeze(model, _optimizer):
    model[0].requires_grad_(False)


def unfreeze(model, _optimizer):
    model[0].requires_grad_(True)


def add_group(model, optimizer):
    optimizer.add_param_group({"params": list(model[0].parameters())})
    optimizer.zero_grad()


@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-7), ("fp16", 1e-3)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [freeze, unfreeze, add_group])
def test_changing_parameters_train_as_by_hand(change, kind, precision, most):
    runs = []
    for _ in range(2):
        model = network()
        model[0].requires_grad_(change is not unfreeze)
        trained = model[2] if change is add_group else model
        runs.append((model, KINDS[kind](trained.parameters())))
    if kind == "sgd":  # torch's fused SGD itself fails where only some momenta are made
        runs[0] = (runs[0][0], SGD(runs[0][1].param_groups[0]["params"], lr=0.01, momentum=0.9))
    expected = by_hand(*runs[0], change)
    trainer = make_trainer(*runs[1], precision)
    assert gap(expected, by_trainer(trainer, change)) <= most
    assert all(p.grad is None for p in trainer.model.parameters())


@pytest.mark.parametrize("change", [unfreeze, add_group])
def test_an_overflow_of_changed_parameters_is_detected(change):
    model = network()
    model[0].requires_grad_(change is not unfreeze)
    optimizer = KINDS["sgd"]((model[2] if change is add_group else model).parameters())
    trainer = make_trainer(model, optimizer)
    by_trainer(trainer, change)
    model[0].weight.register_hook(lambda grad: grad * float("inf"))
    trainer.step(trainer.training_step(batch(0), loss_of))
    assert trainer.get_stats()["overflow_steps"] == 1
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_cast_model_trains_what_is_unfrozen():
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    trainer = make_trainer(model, KINDS["adamw"](model.parameters()), "fp16")
    trainer.cast_model_to_fp16()
    by_trainer(trainer, unfreeze)
    after = trainer.state_dict()["model"]["0.weight"]
    assert after.dtype == torch.float32
    assert not torch.equal(after, before)


def test_a_cast_model_takes_a_new_group():
    model, other = network(), network()
    trainer = make_trainer(model, KINDS["adamw"](model[2].parameters()), "fp16")
    trainer.cast_model_to_fp16()
    expected = by_hand(other, KINDS["adamw"](other[2].parameters()), add_group)
    by_trainer(trainer, add_group)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert gap(expected, trainer.state_dict()["model"]) <= 2e-3


def test_no_group_is_added_inside_a_window():
    model = network()
    trainer = make_trainer(model, KINDS["adamw"](model[2].parameters()), accumulate=2)
    trainer.step(trainer.training_step(batch(0), loss_of))
    add_group(model, trainer.optimizer)
    with pytest.raises(RuntimeError, match="1 of 2"):
        trainer.step(trainer.training_step(batch(1), loss_of))


def test_a_new_group_without_fused_takes_the_unfused_step():
    def add(model, optimizer):
        optimizer.add_param_group({"params": list(model[0].parameters()), "fused": False})
        optimizer.zero_grad()

    model, other = network(), network()
    expected = by_hand(other, KINDS["adamw"](other[2].parameters()), add)
    trainer = make_trainer(model, KINDS["adamw"](model[2].parameters()))
    assert gap(expected, by_trainer(trainer, add)) <= 1e-7


def test_an_optimizer_of_other_parameters_is_refused():
    model, other = network(), network()
    with pytest.raises(ValueError, match="4 of the optimizer's 4"):
        make_trainer(model, KINDS["adamw"](other.parameters()))
    both = KINDS["adamw"]([*model.parameters(), *other[2].parameters()])
    with pytest.raises(ValueError, match=r"2 of .* 6 .*\(1, 8\)"):
        make_trainer(model, both)
    optimizer = KINDS["adamw"](model.parameters())
    model[2] = nn.Linear(8, 1)  # as in fine-tuning
    with pytest.raises(ValueError, match="last change"):
        make_trainer(model, optimizer)


def test_a_new_group_of_other_parameters_is_refused():
    model = network()
    trainer = make_trainer(model, KINDS["adamw"](model.parameters()))
    trainer.optimizer.add_param_group({"params": list(network().parameters())})
    with pytest.raises(ValueError, match="4 of the optimizer's 8"):
        trainer.step(trainer.training_step(batch(0), loss_of))
