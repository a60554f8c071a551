"""The trainer's state in checkpoints: under any precision, of any optimizer option."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.checkpoints import CheckpointError


@pytest.fixture
def run(loss_fn, batch, spiked) -> Callable[[FP16Trainer, range], None]:
    def run(trainer: FP16Trainer, steps: range) -> None:
        for step in steps:
            trainer.step(trainer.training_step(spiked(batch, step), loss_fn))

    return run


def test_a_resumed_training_is_bit_exact(make_trainer, run, tmp_path: Path) -> None:
    options = {"adaptive_clip": True, "adaptive_growth_interval": True, "growth_interval": 3}
    options |= {"loss_scale": 2.0**17}  # the ceiling is met, trials fail
    whole, first, second = (make_trainer("fp16", **options) for _ in range(3))
    run(whole, range(90))
    run(first, range(45))
    first.save_checkpoint(tmp_path / "c.pt")
    second.load_checkpoint(tmp_path / "c.pt")
    run(second, range(45, 90))
    assert second.state_dict()["adaptive_clip"] == whole.state_dict()["adaptive_clip"]
    assert second.state_dict()["loss_scale"] == whole.state_dict()["loss_scale"]
    assert whole.get_stats()["overflow_steps"] > 2
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_without_clipping_loads_into_a_clipping_trainer(
    make_trainer, run, tmp_path: Path
) -> None:
    plain, clipping = make_trainer("fp16"), make_trainer("fp16", adaptive_clip=True)
    run(plain, range(3))
    plain.save_checkpoint(tmp_path / "plain.pt")
    clipping.load_checkpoint(tmp_path / "plain.pt")
    assert torch.equal(weights(clipping), weights(plain))
    run(clipping, range(3))
    assert not torch.equal(weights(clipping), weights(plain))
    clipping.save_checkpoint(tmp_path / "clipping.pt")
    plain.load_checkpoint(tmp_path / "clipping.pt")
    assert torch.equal(weights(clipping), weights(plain))


def weights(trainer: FP16Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def train(trainer: FP16Trainer, batch, loss_fn, steps: int) -> FP16Trainer:
    for _ in range(steps):
        trainer.step(trainer.training_step(batch, loss_fn))
    return trainer


@pytest.mark.parametrize(
    ("saved", "loaded"), [("fp16", "fp32"), ("fp32", "fp16"), ("fp16", "fp16")]
)
def test_checkpoints_load_under_every_precision(
    make_trainer, batch, loss_fn, tmp_path: Path, saved, loaded
):
    first = train(make_trainer(saved, growth_interval=4), batch, loss_fn, 6)
    first.save_checkpoint(tmp_path / "a.pt")
    second = make_trainer(loaded, growth_interval=4, seed=1)
    second.load_checkpoint(tmp_path / "a.pt")
    assert torch.equal(weights(first), weights(second))
    assert second.precision.value == loaded
    assert second.state_dict()["loss_scale"] == first.state_dict()["loss_scale"]
    if saved == loaded:
        train(first, batch, loss_fn, 7)
        train(second, batch, loss_fn, 7)
        assert torch.equal(weights(first), weights(second))
        assert first.get_stats() == second.get_stats()


@pytest.mark.process
def test_a_compiled_model_and_a_plain_one_share_checkpoints(
    make_trainer, batch, loss_fn, tmp_path: Path
):
    plain, inner = make_trainer(), make_trainer(seed=1).model
    compiled = FP16Trainer(
        torch.compile(inner, backend="eager"),
        torch.optim.AdamW(inner.parameters(), lr=1e-2, fused=True),
        FP16TrainingConfig(cpu_half=True),
    )
    train(compiled, batch, loss_fn, 2)
    compiled.save_checkpoint(tmp_path / "a.pt")
    plain.load_checkpoint(tmp_path / "a.pt")
    assert torch.equal(weights(plain), weights(compiled))
    compiled.load_state_dict(plain.state_dict())


def test_a_checkpoint_of_another_precision_is_logged(make_trainer) -> None:
    whole, half = (make_trainer(name, loss_scale=64.0) for name in ("fp32", "fp16"))
    with capture_logs() as logs:
        half.load_state_dict(copy.deepcopy(whole.state_dict()))
        whole.load_state_dict(copy.deepcopy(half.state_dict()))
    saved = [log["saved"] for log in logs if log["event"] == "checkpoint_of_other_precision"]
    assert saved == ["fp32", "fp16"]


def test_a_model_cast_to_fp16_saves_updates_that_fp16_cannot_hold() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, fused=True)
    trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, loss_scale=8.0))
    trainer.cast_model_to_fp16()
    for _ in range(100):
        trainer.step(trainer.training_step(torch.ones(1, 1), lambda forward, x: forward(x).mean()))
    saved = trainer.state_dict()["model"]["weight"]
    assert saved.dtype == torch.float32
    assert saved.item() == pytest.approx(1.0 - 100 * 1e-5, abs=1e-5)


def test_a_checkpoint_of_another_model_is_refused(make_trainer, tmp_path: Path):
    make_trainer().save_checkpoint(tmp_path / "a.pt")
    model = nn.Linear(3, 3)
    other = FP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CheckpointError, match=r"a\.pt does not fit"):
        other.load_checkpoint(tmp_path / "a.pt")


def test_an_incomplete_state_is_refused_before_anything_is_loaded(make_trainer):
    trainer = make_trainer("fp32")
    state = trainer.state_dict()
    del state["loss_scale"], state["record"]
    with pytest.raises(ValueError, match="lacks loss_scale, record"):
        trainer.load_state_dict(state)
    with pytest.raises(ValueError, match="lacks model, optimizer"):
        trainer.load_state_dict({})


@pytest.mark.parametrize(("saved", "loaded"), [("adamw", "sgd"), ("sgd", "adamw")])
def test_a_checkpoint_of_another_optimizer_is_refused_before_anything_is_loaded(
    make_trainer, batch, loss_fn, tmp_path: Path, saved, loaded
):
    first = train(make_trainer("fp16", saved), batch, loss_fn, 2)
    first.save_checkpoint(tmp_path / "a.pt")
    second = make_trainer("fp16", loaded, seed=1)
    before = weights(second)
    with pytest.raises(CheckpointError, match=r"another optimizer .*but not"):
        second.load_checkpoint(tmp_path / "a.pt")
    assert torch.equal(weights(second), before)
    train(second, batch, loss_fn, 1)
