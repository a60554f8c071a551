from __future__ import annotations

import copy
import pickle

import pytest
import torch
from pytorch_optimizer import Lookahead
from torch import nn
from torch.optim import SGD, AdamW, Muon
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from infrastructure.training import FP16Trainer, FP16TrainingConfig, MultiOptimizer
from infrastructure.training.checkpoints import CheckpointError
from infrastructure.training.multi_optimizer import members_of
from tests.infrastructure.training.losses import infinite_gradient


def make_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))


def make(model: nn.Module) -> MultiOptimizer:
    parameters = list(model.parameters())
    matrices, rest = ([p for p in parameters if (p.ndim == 2) is flat] for flat in (True, False))
    return MultiOptimizer(Muon(matrices, lr=0.02), AdamW(rest, lr=0.01, fused=True))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for step in range(steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_steps_as_its_members_do() -> None:
    together, apart = make_model(), make_model()
    trained(together, make(together))
    for member in make(apart).members:
        assert len(member.param_groups) == 1
    members = make(apart)
    for step in range(3):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        members.zero_grad()
        apart(x).square().mean().backward()
        for member in members.members:
            member.step()
    assert torch.equal(weights(together), weights(apart))


def test_groups_and_state_are_those_of_the_members() -> None:
    model = make_model()
    optimizer = make(model)
    trained(model, optimizer, 1)
    muon, adamw = optimizer.members
    assert [
        group is own
        for group, own in zip(
            optimizer.param_groups, [*muon.param_groups, *adamw.param_groups], strict=True
        )
    ] == [True, True]
    weight, bias = model[0].weight, model[0].bias
    assert optimizer.state[weight] is muon.state[weight]
    assert optimizer.state[bias] is adamw.state[bias]
    assert set(optimizer.state) == set(model.parameters())
    assert len(optimizer.state) == 4
    del optimizer.state[weight]
    assert weight not in muon.state
    with pytest.raises(KeyError):
        optimizer.state[weight]
    with pytest.raises(KeyError):
        del optimizer.state[weight]
    optimizer.state[weight] = {"momentum_buffer": torch.zeros_like(weight)}
    assert weight in muon.state
    assert weight not in adamw.state
    with pytest.raises(KeyError):
        optimizer.state[torch.zeros(1)] = {}
    optimizer.state.clear()
    assert not muon.state
    assert not adamw.state
    with pytest.raises(AttributeError, match="of a member"):
        optimizer.state = {}
    with pytest.raises(AttributeError, match="of a member"):
        optimizer.param_groups = []


def test_schedulers_of_torch_change_all_groups() -> None:
    model = make_model()
    optimizer = make(model)
    warm_up = LinearLR(optimizer, start_factor=0.5, total_iters=2)
    scheduler = SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, T_max=4)], [2])
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.005]
    for _ in range(2):
        trained(model, optimizer, 1)
        scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.01]


def test_hooks_on_its_step_are_called() -> None:
    model, called = make_model(), []
    optimizer = make(model)
    optimizer.register_step_post_hook(lambda *_: called.append("post"))
    trained(model, optimizer, 2)
    assert called == ["post", "post"]


def test_a_closure_is_called_once() -> None:
    model, calls = make_model(), []
    optimizer = make(model)

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss.item()

    with torch.no_grad():
        assert isinstance(optimizer.step(closure), float)
    assert calls == [True]


def test_a_state_continues_bit_for_bit() -> None:
    first, second = make_model(), make_model(1)
    one, other = make(first), make(second)
    trained(first, one)
    second.load_state_dict(first.state_dict())
    state = copy.deepcopy(one.state_dict())
    assert [group["params"] for group in state["param_groups"]] == [[0, 1], [2, 3]]
    other.load_state_dict(state)
    for model, optimizer in ((first, one), (second, other)):
        trained(model, optimizer)
    assert torch.equal(weights(first), weights(second))
    with pytest.raises(ValueError, match="has 1 parameter groups where the optimizers have 2"):
        other.load_state_dict({**state, "param_groups": state["param_groups"][:1]})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_has_members_of_its_own(copied) -> None:
    model = make_model()
    optimizer = make(model)
    trained(model, optimizer, 1)
    other = copied(optimizer)
    assert [type(member) for member in other.members] == [Muon, AdamW]
    before = weights(model)
    for group in other.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    other.step()
    assert torch.equal(weights(model), before)


def test_a_group_added_to_a_member_is_trained(loss_fn, batch) -> None:
    model = make_model()
    optimizer = MultiOptimizer(Muon([model[0].weight]), AdamW([model[0].bias]))
    config = FP16TrainingConfig(cpu_half=True, loss_scale=256.0)
    trainer, before = FP16Trainer(model, optimizer, config), model[2].bias.detach().clone()
    trainer.train_batch(batch, loss_fn)
    assert torch.equal(model[2].bias, before)
    with pytest.raises(TypeError, match=r"with params may be for each of Muon, AdamW: call add_pa"):
        optimizer.add_param_group({"params": [model[2].bias]})
    optimizer.members[1].add_param_group({"params": [model[2].bias]})
    trainer.train_batch(batch, loss_fn)
    assert not torch.equal(model[2].bias, before)
    optimizer.members[1].add_param_group({"params": [model[0].weight]})
    with pytest.raises(ValueError, match=r"0\.weight is in two optimizers"):
        trainer.train_batch(batch, loss_fn)


def test_without_members_or_with_a_wrapper_it_is_refused() -> None:
    parameters = make_model().parameters()
    with pytest.raises(ValueError, match="needs optimizers"):
        MultiOptimizer()
    with pytest.raises(ValueError, match=r"Lookahead wraps SGD, .* wrap the MultiOptimizer in"):
        MultiOptimizer(Lookahead(SGD(parameters, lr=0.1)))


def test_the_model_can_be_held_in_fp16(loss_fn, batch) -> None:
    trainers = []
    for steps in (0, 2):
        model = make_model()
        config = FP16TrainingConfig(cpu_half=True, loss_scale=256.0)
        trainers.append(FP16Trainer(model, make(model), config))
        for _ in range(steps):
            trainers[-1].train_batch(batch, loss_fn)
    fresh, trainer = trainers
    momentum = trainer.optimizer.state[trainer.model[0].weight]["momentum_buffer"]
    trainer.cast_model_to_fp16()
    master = trainer.optimizer.param_groups[0]["params"][0]
    assert master is not trainer.model[0].weight
    assert trainer.optimizer.state[master]["momentum_buffer"] is momentum
    trainer.train_batch(batch, infinite_gradient)
    trainer.train_batch(batch, loss_fn)
    fresh.load_state_dict(trainer.state_dict())
    assert torch.equal(
        weights(fresh.model),
        torch.cat([p.flatten() for p in trainer.state_dict()["model"].values()]),
    )


def test_a_state_of_a_member_that_does_not_fit_is_named(loss_fn, batch, tmp_path) -> None:
    def trainer(optimizer) -> FP16Trainer:
        return FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, loss_scale=256.0))

    model = make_model()
    saved = trainer(make(model))
    saved.train_batch(batch, loss_fn)
    state = copy.deepcopy(saved.state_dict())
    del state["optimizer"]["state"][2]["exp_avg"]
    with pytest.raises(ValueError, match=r"lacks exp_avg of 0\.bias"):
        saved.load_state_dict(state)
    saved.save_checkpoint(tmp_path / "a.pt")
    matrices, rest = (group["params"] for group in saved.optimizer.param_groups)
    swapped = trainer(MultiOptimizer(SGD(matrices, lr=0.1), AdamW(rest)))
    with pytest.raises(CheckpointError, match=r"another optimizer than SGD: it has .*ns_steps"):
        swapped.load_checkpoint(tmp_path / "a.pt")


def test_members_of_one_optimizer_are_itself() -> None:
    model = make_model()
    alone = SGD(model.parameters(), lr=0.1)
    assert list(members_of(alone)) == [alone]
