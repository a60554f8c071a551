"""Checkpoints of a frozen base with an adapter: the base is left out, and recognised by hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infrastructure.events.command import Stop
from infrastructure.events.event import CheckpointSaved
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from infrastructure.training.precision.frozen_base import FrozenBase, OtherBaseError
from infrastructure.training.rounds.kinds import untrained_roles
from tests.infrastructure.training.bandit import Bandit
from tests.infrastructure.training.rounds.test_on_policy import Daemon, run, weights

CPU = torch.device("cpu")
HALVES = [torch.float16, torch.bfloat16]


class Adapted(nn.Module):
    """A frozen base with a trained adapter and a buffer that each forward pass changes."""

    def __init__(self, base: torch.dtype = torch.bfloat16, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base = nn.Linear(4, 64).requires_grad_(False).to(base)
        torch.manual_seed(99)
        self.adapter = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64))
        self.head = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x) + self.adapter(x)))


def trainer_of(model: nn.Module, precision: str = "fp32") -> FP16Trainer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    config = FP16TrainingConfig(precision=Precision(precision), cpu_half=True, loss_scale=256.0)
    return FP16Trainer(model, optimizer, config)


def step(trainer: FP16Trainer, count: int) -> None:
    generator = torch.Generator().manual_seed(trainer.training_steps)
    for _ in range(count):
        x = torch.randn(8, 4, generator=generator)
        trainer.train_batch(
            x, lambda forward, x: (forward(x) - x.sum(1, keepdim=True)).abs().mean()
        )


def state_of(trainer: FP16Trainer) -> dict[str, Tensor]:
    return trainer.model.state_dict()


def equal(one: FP16Trainer, other: FP16Trainer) -> bool:
    first, second = state_of(one), state_of(other)
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_checkpoint_holds_the_adapter_and_resumes_bit_for_bit(half, precision, tmp_path):
    path = tmp_path / "checkpoint.pt"
    undisturbed = trainer_of(Adapted(half), precision)
    step(undisturbed, 3)
    undisturbed.save_checkpoint(path)
    saved = read_checkpoint(path, CPU)
    assert set(saved["frozen_base"]) == {"base.weight", "base.bias"}
    assert set(saved["model"]) == set(state_of(undisturbed)) - set(saved["frozen_base"])
    assert "adapter.1.running_mean" in saved["model"]
    resumed = trainer_of(Adapted(half), precision)
    resumed.load_checkpoint(path)
    step(undisturbed, 3)
    step(resumed, 3)
    assert equal(undisturbed, resumed)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"seed": 1}, r"base\.weight was bfloat16\[64, 4\] \w{16}, but the model has bfloat16\[64"),
        ({"base": torch.float16}, r"base\.weight was bfloat16.*has float16\[64, 4\]"),
        ({"base": torch.float32}, r"base\.weight was bfloat16.*has float32\[64, 4\]"),
    ],
)
def test_another_base_is_refused_by_name_and_nothing_changes(other, differs, tmp_path):
    path = tmp_path / "checkpoint.pt"
    trainer_of(Adapted()).save_checkpoint(path)
    trainer = trainer_of(Adapted(**other))
    step(trainer, 1)
    before = {name: tensor.clone() for name, tensor in state_of(trainer).items()}
    message = f"checkpoint.pt.*{differs}.*1 more parameters.*build the model with the base and"
    with pytest.raises(CheckpointError, match=message):
        trainer.load_checkpoint(path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(trainer).items())


def test_a_base_that_the_model_lacks_is_refused():
    state = trainer_of(Adapted()).state_dict()
    with pytest.raises(OtherBaseError, match=r"base\.weight was .* has no such parameter"):
        FrozenBase(nn.Linear(4, 1)).put_back(state["model"], state["frozen_base"])


def test_checkpoints_of_earlier_releases_hold_the_base_and_load(tmp_path):
    path = tmp_path / "checkpoint.pt"
    earlier = trainer_of(Adapted(seed=1))
    step(earlier, 2)
    state = earlier.state_dict()
    del state["frozen_base"]
    state["model"] = earlier.model.state_dict()
    write_checkpoint(path, state)
    trainer = trainer_of(Adapted(seed=0))
    trainer.load_checkpoint(path)
    assert equal(trainer, earlier)
    trainer.save_checkpoint(path)  # it holds the base as well: it is not the one of this model
    again = trainer_of(Adapted(seed=0))
    again.load_checkpoint(path)
    assert equal(again, earlier)


def test_a_base_that_something_has_changed_is_saved(tmp_path):
    path = tmp_path / "checkpoint.pt"
    trainer = trainer_of(Adapted())
    trainer.model.base.weight.data.mul_(0.5)  # as a merged adapter does
    trainer.save_checkpoint(path)
    assert set(read_checkpoint(path, CPU)["frozen_base"]) == {"base.bias"}
    again = trainer_of(Adapted())
    again.load_checkpoint(path)
    assert equal(again, trainer)


def test_frozen_float32_parameters_stay_in_checkpoints_because_they_may_be_unfrozen():
    state = trainer_of(Adapted(torch.float32)).state_dict()
    assert state["frozen_base"] == {}
    assert "base.weight" in state["model"]


def test_the_hash_tells_values_places_shapes_and_types_apart():
    weight = torch.randn(3, 2**20, dtype=torch.bfloat16)  # of several chunks
    changed = weight.clone()
    changed[2, -1] = changed[2, -1] + 1
    exchanged, shifted = weight.flip(0), weight.roll(1, dims=1)
    model = nn.Module()
    model.weight = nn.Parameter(weight.clone(), requires_grad=False)
    base = FrozenBase(model)
    hashes = base.leave_out({"weight": weight})[1]
    assert hashes
    for other in (changed, exchanged, shifted, weight.view(2**20, 3), weight.half()):
        assert base.leave_out({"weight": other})[1] == {}
        model.weight.data = other
        with pytest.raises(OtherBaseError):
            base.put_back({}, hashes)
    model.weight.data = weight.T.contiguous().T  # the same numbers in another layout
    assert base.put_back({}, hashes).keys() == {"weight"}


def bandit_of(seed: int = 7, **changes: Any) -> Bandit:
    """A bandit whose first layer is a frozen half."""
    changes = {"epochs": 2, "warm_up_rounds": 1, "sync_every_rounds": 3, **changes}
    bandit = Bandit(**changes)
    torch.manual_seed(seed)
    bandit.model[0] = nn.Linear(4, 16).bfloat16().requires_grad_(False)
    return bandit


def test_the_copies_of_a_policy_share_its_base():
    bandit = bandit_of()
    roles = untrained_roles(bandit.job, bandit.model, CPU)
    for role in (roles.rollout, roles.reference):
        assert role.module[0].weight is bandit.model[0].weight
        assert role.module[3].weight is not bandit.model[3].weight


@pytest.mark.process
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_policy_resumes_in_a_round_from_checkpoints_without_the_base(precision, tmp_path: Path):
    whole = bandit_of()
    run(whole, tmp_path / "whole", precision, best_epoch=tmp_path / "whole.pt")
    best, folder = tmp_path / "best.pt", tmp_path / "parts"
    stop = Daemon(at=18, command=Stop(reason="test"))
    stopped, _ = run(bandit_of(), folder, precision, daemon=stop, best_epoch=best)
    assert stopped.outcome == "stopped"
    saved = read_checkpoint(Path(stop.of(CheckpointSaved)[-1].path), CPU)
    for role in ("rollout", "reference"):
        assert set(saved["rounds"][f"{role}_base"]) == {"0.weight", "0.bias"}
        assert set(saved["rounds"][role]) == {"3.weight", "3.bias"}
    resumed = bandit_of()
    run(resumed, folder, precision, best_epoch=best)
    assert torch.equal(weights(resumed), weights(whole))


@pytest.mark.process
def test_a_job_with_another_base_is_refused_before_its_first_step(tmp_path: Path):
    run(bandit_of(), tmp_path, daemon=Daemon(at=9, command=Stop(reason="test")))
    daemon = Daemon()
    with pytest.raises(CheckpointError, match=r"0\.weight was bfloat16\[16, 4\].*build the model"):
        run(bandit_of(seed=8), tmp_path, daemon=daemon)
    assert daemon.calls == 0


def test_a_merged_adapter_is_refused_since_it_would_count_twice():
    trainer = trainer_of(Adapted())
    trainer.model.merged = True  # as peft's layers tell it
    with pytest.raises(RuntimeError, match=r"unmerge_adapter\(\)"):
        trainer.state_dict()
