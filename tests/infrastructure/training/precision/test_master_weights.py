from __future__ import annotations

import pytest
import torch
from torch import nn

from infrastructure.events import PrecisionState
from infrastructure.training import FP16Trainer, FP16TrainingConfig

FP32_BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
SCALE = {"loss_scale": 256.0}


def run(trainer, batch, loss_fn, steps):
    for _ in range(steps):
        trainer.step(trainer.training_step(batch, loss_fn))


def weights(trainer):
    return torch.cat([p.detach().float().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("name", ["adamw", "sgd", "adamw-loop"])
def test_a_cast_model_trains_as_autocast_does(make_trainer, batch, loss_fn, name):
    plain = make_trainer("fp16", name, **SCALE)
    cast = make_trainer("fp16", name, **SCALE)
    cast.cast_model_to_fp16()
    assert {p.dtype for p in cast.model.parameters()} == {torch.float16}
    for trainer in (plain, cast):
        run(trainer, batch, loss_fn, 20)
    masters = torch.cat([p.flatten() for p in cast.state_dict()["model"].values()])
    torch.testing.assert_close(masters, weights(plain), rtol=0, atol=2e-3)
    assert cast.get_stats()["applied_steps"] == 20


def test_updates_too_small_for_fp16_add_up_in_the_masters(loss_fn):
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    trainer = FP16Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-5, fused=True),
        FP16TrainingConfig(cpu_half=True, loss_scale=8.0),
    )
    trainer.cast_model_to_fp16()
    x = torch.ones(1, 1)
    run(trainer, x, lambda f, b: f(b).mean(), 200)  # 200 steps of 1e-5; FP16 resolves 5e-4
    assert trainer.state_dict()["model"]["weight"].item() == pytest.approx(1 - 200e-5, abs=1e-5)
    assert model.weight.item() == pytest.approx(1 - 200e-5, abs=5e-4)
    assert model.weight.item() != 1.0


def test_the_model_takes_half_the_bytes(make_trainer):
    trainer = make_trainer("fp16")
    before = sum(p.nbytes for p in trainer.model.parameters())
    trainer.cast_model_to_fp16()
    assert sum(p.nbytes for p in trainer.model.parameters()) * 2 == before


@pytest.mark.parametrize(("saved", "loaded"), [(True, True), (True, False), (False, True)])
def test_checkpoints_are_portable(make_trainer, batch, loss_fn, tmp_path, saved, loaded):
    first, second = make_trainer("fp16", **SCALE), make_trainer("fp16", seed=1, **SCALE)
    if saved:
        first.cast_model_to_fp16()
    if loaded:
        second.cast_model_to_fp16()
    run(first, batch, loss_fn, 5)
    first.save_checkpoint(tmp_path / "a.pt")
    second.load_checkpoint(tmp_path / "a.pt")
    state = second.state_dict()["model"]
    assert {value.dtype for value in state.values()} == {torch.float32}
    assert all(torch.equal(value, first.state_dict()["model"][key]) for key, value in state.items())
    if saved == loaded:
        run(first, batch, loss_fn, 5)
        run(second, batch, loss_fn, 5)
        assert torch.equal(weights(first), weights(second))


def test_saving_changes_nothing(make_trainer, batch, loss_fn, tmp_path):
    quiet, saving = make_trainer("fp16", **SCALE), make_trainer("fp16", **SCALE)
    for trainer in (quiet, saving):
        trainer.cast_model_to_fp16()
        run(trainer, batch, loss_fn, 3)
    saving.save_checkpoint(tmp_path / "a.pt")
    for trainer in (quiet, saving):
        run(trainer, batch, loss_fn, 3)
    assert torch.equal(weights(quiet), weights(saving))


def test_a_rollback_brings_float32_back_and_fp16_casts_again(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp16", **SCALE)
    trainer.cast_model_to_fp16()
    run(trainer, batch, loss_fn, 3)
    trainer.set_precision(FP32_BY_FLAG)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    run(trainer, batch, loss_fn, 3)
    trainer.set_precision(FP16)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float16}
    run(trainer, batch, loss_fn, 3)
    assert trainer.get_stats()["applied_steps"] == 9


def test_gradients_of_micro_batches_add_up_in_float32(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp16", accumulate=2, **SCALE)
    trainer.cast_model_to_fp16()
    run(trainer, batch, loss_fn, 1)
    assert all(p.grad is None for p in trainer.model.parameters())
    with pytest.raises(RuntimeError, match="1 of 2"):
        trainer.cast_model_to_fp16()
    run(trainer, batch, loss_fn, 1)
    assert trainer.get_stats()["applied_steps"] == 1


def test_overflow_leaves_masters_and_model_alone(make_trainer, batch):
    trainer = make_trainer("fp16")
    trainer.cast_model_to_fp16()
    before = weights(trainer)
    trainer.step(trainer.training_step(batch, lambda f, b: f(b["x"]).mean() * 1e6))
    assert trainer.get_stats()["overflow_steps"] == 1
    assert torch.equal(weights(trainer), before)


def test_batch_normalisation_stays_float32(batch, loss_fn):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, **SCALE))
    before = model[1].weight.detach().clone()
    trainer.cast_model_to_fp16()
    run(trainer, batch, loss_fn, 3)
    assert trainer.get_stats()["applied_steps"] == 3
    assert (model[0].weight.dtype, model[1].weight.dtype) == (torch.float16, torch.float32)
    assert not torch.equal(model[1].weight, before)
    assert all(p.grad is None for p in model.parameters())


def test_a_state_that_does_not_fit_leaves_the_cast_in_force(make_trainer):
    trainer = make_trainer("fp16", **SCALE)
    trainer.cast_model_to_fp16()
    state = {**trainer.state_dict(), "model": {"other": torch.ones(1)}}
    with pytest.raises(ValueError, match="another model"):
        trainer.load_state_dict(state)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float16}
