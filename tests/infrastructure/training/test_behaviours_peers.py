"""What goes wrong in Lightning Fabric and Accelerate and not in `FP16Trainer`, one by one.

Neither computes FP16 on a CPU of its own accord, so both are given the scaler and the autocast
that they use on CUDA. A test that fails on the peer's side tells that a newer version has mended
it: then the comparison is to go.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infrastructure.training import FP16Trainer
from tests.infrastructure.training.losses import infinite_gradient, nan_loss

Batch = dict[str, Tensor]
Loss = Callable[[Any, Batch], Tensor]

INSTALL = "is not installed: pip install --constraint constraints.txt --editable '.[peers]'"
# Lightning warns wherever Slurm is installed; our own tests of executors install it.
pytestmark = pytest.mark.filterwarnings("ignore:The `srun` command is available")
PEERS = [pytest.param("fabric", marks=pytest.mark.process), "accelerate"]


@dataclass
class Peer:
    """A peer's loop as its documentation has it; *rates* is a scheduler that halves the rate."""

    engine: Any
    model: Any
    optimizer: Any
    scaler: torch.amp.GradScaler | None
    clip: Callable[[], object]
    rates: Any = None

    def step(self, batch: Batch, loss_fn: Loss, *, clip: bool = True) -> None:
        self.engine.backward(loss_fn(self.model, batch))
        if clip:
            self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()


Builder = Callable[..., Peer]


@pytest.fixture
def fabric(make_optimizer) -> Builder:
    pytest.importorskip("lightning", reason=f"lightning {INSTALL}")
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    def make(
        model: nn.Module, optimizer: str = "adamw-loop", scale: float = 65536.0, fp16: bool = True
    ) -> Peer:
        scaler = torch.amp.GradScaler("cpu", init_scale=scale) if fp16 else None
        plugins = [MixedPrecision("16-mixed", "cpu", scaler)] if fp16 else []
        engine = Fabric(accelerator="cpu", devices=1, plugins=plugins)
        wrapped, stepper = engine.setup(model, make_optimizer[optimizer](model.parameters()))
        return Peer(
            engine,
            wrapped,
            stepper,
            scaler,
            clip=lambda: engine.clip_gradients(wrapped, stepper, max_norm=1.0),
        )

    return make


@pytest.fixture
def accelerate(make_optimizer) -> Iterator[Builder]:
    pytest.importorskip("accelerate", reason=f"accelerate {INSTALL}")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    def forget() -> None:  # its state is the process's
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    def make(
        model: nn.Module,
        optimizer: str = "adamw",
        scale: float = 65536.0,
        fp16: bool = True,
        **options: Any,
    ) -> Peer:
        forget()
        engine = Accelerator(cpu=True, mixed_precision="fp16" if fp16 else "no", **options)
        if fp16:
            engine.native_amp = True
            engine.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        raw = make_optimizer[optimizer](model.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(raw, gamma=0.5)
        wrapped, stepper, rates = engine.prepare(model, raw, scheduler)
        return Peer(
            engine,
            wrapped,
            stepper,
            engine.scaler,
            clip=lambda: engine.clip_grad_norm_(wrapped.parameters(), 1.0),
            rates=rates,
        )

    yield make
    forget()


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Builder:
    """The peer that the test is parametrized with."""
    builder: Builder = request.getfixturevalue(request.param)
    return builder


both_peers = pytest.mark.parametrize("peer", PEERS, indirect=True)


def model_of(trainer: FP16Trainer) -> nn.Module:
    return copy.deepcopy(trainer.model)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def step(trainer: FP16Trainer, batch: Batch, loss_fn: Loss) -> None:
    trainer.step(trainer.training_step(batch, loss_fn))


def without_gradients(_forward, _batch):
    return torch.ones((), requires_grad=True) * 2.0


# -- the step ------------------------------------------------------------------------------------


@pytest.mark.process
@both_peers
@pytest.mark.parametrize("bad_steps", [144, 166])
def test_a_collapsed_scale_destroys_their_weights(
    make_trainer, peer, batch, loss_fn, bad_steps
) -> None:
    trainer = make_trainer()
    theirs = peer(model_of(trainer), optimizer="adamw-loop")
    for _ in range(bad_steps):
        theirs.step(batch, infinite_gradient, clip=False)
        step(trainer, batch, infinite_gradient)
    assert weights(theirs.model).isfinite().all()
    theirs.step(batch, loss_fn, clip=False)
    step(trainer, batch, loss_fn)
    assert not weights(theirs.model).isfinite().any()
    assert weights(trainer.model).isfinite().all()


@both_peers
def test_they_take_a_nan_loss_for_overflow(make_trainer, peer, batch) -> None:
    trainer = make_trainer()
    theirs = peer(model_of(trainer))
    theirs.step(batch, nan_loss, clip=False)
    step(trainer, batch, nan_loss)
    assert theirs.scaler.get_scale() == 32768.0
    assert trainer.get_stats()["current_scale"] == 65536.0
    assert trainer.get_stats()["nonfinite_loss_steps"] == 1


@both_peers
def test_one_nan_loss_ends_their_fp32_training(make_trainer, peer, batch) -> None:
    trainer = make_trainer("fp32")
    theirs = peer(model_of(trainer), fp16=False)
    theirs.step(batch, nan_loss, clip=False)
    step(trainer, batch, nan_loss)
    assert weights(theirs.model).isnan().all()
    assert weights(trainer.model).isfinite().all()


def test_fabric_raises_where_clipping_meets_overflow(make_trainer, fabric, batch) -> None:
    trainer = make_trainer()
    theirs = fabric(model_of(trainer))
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        theirs.step(batch, infinite_gradient)
    before = weights(trainer.model)
    step(trainer, batch, infinite_gradient)
    assert torch.equal(weights(trainer.model), before)
    assert trainer.get_stats()["overflow_steps"] == 1


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "adagrad"])
def test_fabric_refuses_to_clip_with_a_fused_optimizer(
    make_trainer, fabric, batch, loss_fn, optimizer
) -> None:
    trainer = make_trainer(optimizer=optimizer, loss_scale=64.0)
    theirs = fabric(model_of(trainer), optimizer=optimizer, scale=64.0)
    with pytest.raises(NotImplementedError, match="optimizers handling the unscaling"):
        theirs.step(batch, loss_fn)
    step(trainer, batch, loss_fn)
    assert trainer.get_stats()["applied_steps"] == 1


def test_accelerate_does_not_see_that_a_fused_optimizer_skipped(
    make_trainer, accelerate, batch
) -> None:
    trainer = make_trainer()
    seen = {}
    for optimizer in ("adamw", "adamw-loop"):
        theirs = accelerate(model_of(trainer), optimizer=optimizer)
        before = weights(theirs.model)
        theirs.step(batch, infinite_gradient)
        theirs.rates.step()
        assert torch.equal(weights(theirs.model), before)
        seen[optimizer] = (theirs.optimizer.step_was_skipped, theirs.rates.get_last_lr()[0])
    assert seen == {"adamw": (False, 5e-3), "adamw-loop": (True, 1e-2)}
    assert trainer.backward_and_step(trainer.training_step(batch, infinite_gradient)) is False
    assert (trainer.training_steps, trainer.get_stats()["applied_steps"]) == (1, 0)


@both_peers
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-loop"])
def test_a_step_without_gradients_ends_their_training(
    make_trainer, peer, batch, loss_fn, optimizer
) -> None:
    trainer = make_trainer(optimizer=optimizer, loss_scale=64.0)
    theirs = peer(model_of(trainer), optimizer=optimizer)
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        theirs.step(batch, without_gradients, clip=False)
    step(trainer, batch, without_gradients)
    step(trainer, batch, loss_fn)
    stats = trainer.get_stats()
    assert (stats["no_gradient_steps"], stats["applied_steps"]) == (1, 1)


def test_accelerate_cannot_clip_each_micro_batch_and_shortens_the_last_step(
    accelerate, make_optimizer, make_trainer, batch, loss_fn
) -> None:
    trainer = make_trainer("fp32", "sgd", max_grad_norm=None, accumulate=3)
    whole = make_trainer("fp32", "sgd", max_grad_norm=None)
    theirs = accelerate(model_of(trainer), "sgd", gradient_accumulation_steps=2)
    with theirs.engine.accumulate(theirs.model):
        theirs.step(batch, loss_fn)
    with (
        pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"),
        theirs.engine.accumulate(theirs.model),
    ):
        theirs.step(batch, loss_fn)

    theirs = accelerate(model_of(trainer), "sgd", fp16=False, gradient_accumulation_steps=3)
    begin = weights(theirs.model)
    for one in theirs.engine.prepare(torch.utils.data.DataLoader([batch] * 2, batch_size=None)):
        with theirs.engine.accumulate(theirs.model):  # an epoch of two thirds of a window
            theirs.step(one, loss_fn, clip=False)
        step(trainer, batch, loss_fn)
    trainer.finish_window()
    step(whole, batch, loss_fn)
    moved = weights(whole.model) - begin
    torch.testing.assert_close(weights(theirs.model) - begin, moved * 2 / 3)
    torch.testing.assert_close(weights(trainer.model) - begin, moved)


@both_peers
def test_they_refuse_half_parameters_only_when_the_first_step_is_due(
    make_trainer, make_optimizer, peer, batch, loss_fn
) -> None:
    model = model_of(make_trainer()).half()
    theirs = peer(model)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        theirs.step(batch, loss_fn)
    with pytest.raises(ValueError, match=r"0\.weight is torch\.float16"):
        FP16Trainer(model, make_optimizer["adamw"](model.parameters()))


# -- resuming ------------------------------------------------------------------------------------


def test_fabrics_fp32_state_cannot_become_fp16(make_trainer, fabric, batch, loss_fn) -> None:
    trainer = make_trainer(loss_scale=64.0)
    whole, half = fabric(model_of(trainer), fp16=False), fabric(model_of(trainer))
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        half.engine.strategy.precision.load_state_dict(whole.engine.strategy.precision.state_dict())
    trainer.load_state_dict(make_trainer("fp32", loss_scale=64.0).state_dict())
    step(trainer, batch, loss_fn)
    assert trainer.get_stats()["applied_steps"] == 1


def test_accelerate_cannot_resume_fp32_as_fp16(
    make_trainer, accelerate, batch, loss_fn, tmp_path: Path
) -> None:
    whole, half = make_trainer("fp32", loss_scale=64.0), make_trainer("fp16")
    theirs = accelerate(model_of(whole), fp16=False)
    theirs.step(batch, loss_fn)
    theirs.engine.save_state(tmp_path / "theirs")
    theirs = accelerate(model_of(whole))
    with pytest.raises(FileNotFoundError, match=r"scaler\.pt"):
        theirs.engine.load_state(tmp_path / "theirs")

    step(whole, batch, loss_fn)
    whole.save_checkpoint(tmp_path / "ours.pt")
    half.load_checkpoint(tmp_path / "ours.pt")
    assert torch.equal(weights(half.model), weights(whole.model))
    step(half, batch, loss_fn)
    assert half.get_stats()["applied_steps"] == 2


def test_fabrics_checkpoint_has_no_scale(
    make_trainer, fabric, batch, loss_fn, tmp_path: Path
) -> None:
    trainer, again = make_trainer(loss_scale=8192.0), make_trainer()
    theirs = fabric(model_of(trainer), scale=8192.0)
    theirs.step(batch, loss_fn)
    state = {"model": theirs.model, "optimizer": theirs.optimizer}
    theirs.engine.save(tmp_path / "theirs.pt", state)
    assert theirs.scaler.get_scale() == 8192.0
    theirs = fabric(model_of(trainer))
    left = theirs.engine.load(
        tmp_path / "theirs.pt", {"model": theirs.model, "optimizer": theirs.optimizer}
    )
    assert (theirs.scaler.get_scale(), left) == (65536.0, {})

    step(trainer, batch, loss_fn)
    trainer.save_checkpoint(tmp_path / "ours.pt")
    again.load_checkpoint(tmp_path / "ours.pt")
    assert again.get_stats()["current_scale"] == 8192.0
    for ours in (trainer, again):
        step(ours, batch, loss_fn)
    assert again.state_dict()["loss_scale"] == trainer.state_dict()["loss_scale"]
    assert torch.equal(weights(again.model), weights(trainer.model))
