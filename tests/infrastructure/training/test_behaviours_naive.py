"""What goes wrong in loops written by hand and not in `FP16Trainer`, one beside the other.

`tests/infrastructure/training/distributed/test_naive_ranks.py` does the same on two ranks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils import deterministic

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import PrecisionState
from infrastructure.events.event import BaseEvent, Notice, PrecisionChanged
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.training.loop.divergence import TrainingDivergedError
from tests.infrastructure.training.losses import infinite_gradient, nan_loss

Batch = dict[str, Tensor]
Loss = Callable[[Any, Batch], Tensor]

CPU = torch.device("cpu")
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
FP32_BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")


class Textbook:
    """The loop of torch's AMP recipe: scale, backward, unscale, clip, step, update."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scale: float = 65536.0,
        max_norm: float | None = 1.0,
        fp16: bool = True,
    ) -> None:
        self.model, self.optimizer, self.max_norm, self.fp16 = model, optimizer, max_norm, fp16
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=fp16)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.fp16):
            output: Tensor = self.model(x)
        return output.float()

    def step(self, batch: Batch, loss_fn: Loss) -> float:
        loss = loss_fn(self.forward, batch)
        self.scaler.scale(loss).backward()
        if self.max_norm is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.item()


@pytest.fixture
def both(make_trainer, make_optimizer) -> Callable[..., tuple[Textbook, FP16Trainer]]:
    """The textbook's loop and ours, with equal weights and the same configuration."""

    def make(
        precision: str = "fp16",
        optimizer: str = "adamw",
        loss_scale: float = 65536.0,
        max_grad_norm: float | None = 1.0,
        **config: Any,
    ) -> tuple[Textbook, FP16Trainer]:
        trainer = make_trainer(
            precision, optimizer, loss_scale=loss_scale, max_grad_norm=max_grad_norm, **config
        )
        model = copy.deepcopy(trainer.model)
        textbook = Textbook(
            model,
            make_optimizer[optimizer](model.parameters()),
            scale=loss_scale,
            max_norm=max_grad_norm,
            fp16=precision == "fp16",
        )
        return textbook, trainer

    return make


def weights(loop: Textbook | FP16Trainer) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in loop.model.parameters()])


def step(trainer: FP16Trainer, batch: Batch, loss_fn: Loss) -> None:
    trainer.step(trainer.training_step(batch, loss_fn))


def output(forward, batch):
    return forward(batch["x"]).mean()


def mse(forward, batch):
    return nn.functional.mse_loss(forward(batch["x"]), batch["y"])


def train_job(
    job: TrainingJob, folder: Path, **config: Any
) -> tuple[Evaluation | None, list[BaseEvent]]:
    """`train` with a checkpoint after every good step."""
    events: list[BaseEvent] = []
    result = train(
        job,
        device=CPU,
        precision=FP16,
        config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0, **config),
        options=LoopOptions(seed=0, stats_interval_steps=1, checkpoint_interval_seconds=0.0),
        folder=folder,
        emit=events.append,
        commands=list,
    )
    return result.evaluation, events


@pytest.fixture
def every_step_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infrastructure.training.loop.statistics._SHORTEST_WINDOW_SECONDS", 0.0)


@pytest.fixture
def unit_weight() -> Callable[[], tuple[nn.Module, torch.optim.Optimizer]]:
    """One weight of 1 and steps of 1e-5, which FP16 cannot tell from none."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        return model, torch.optim.SGD(model.parameters(), lr=1e-5, fused=True)

    return make


# -- the floor of the scale ----------------------------------------------------------------------


@pytest.mark.parametrize("bad_steps", [144, 166])
def test_a_collapsed_scale_destroys_the_textbooks_weights(both, batch, loss_fn, bad_steps) -> None:
    """At 2**-128 the reciprocal of the scale is infinite, and the check for it came before."""
    textbook, trainer = both()
    before = weights(trainer)
    for _ in range(bad_steps):
        textbook.step(batch, infinite_gradient)
        step(trainer, batch, infinite_gradient)
    assert torch.equal(weights(textbook), before)
    textbook.step(batch, loss_fn)
    step(trainer, batch, loss_fn)
    assert not weights(textbook).isfinite().any()
    assert weights(trainer).isfinite().all()
    assert not torch.equal(weights(trainer), before)


@pytest.mark.process
@pytest.mark.usefixtures("every_step_is_read")
def test_the_textbook_skips_for_ever_and_says_nothing(
    both, batch, make_job, tmp_path: Path
) -> None:
    textbook, _ = both()
    for _ in range(200):
        textbook.step(batch, infinite_gradient)
    assert textbook.scaler.get_scale() == 0.0  # it never comes back from there

    def job() -> TrainingJob:
        calls = iter(range(100))

        def loss(forward: Any, batch: Batch) -> Tensor:
            return infinite_gradient(forward, batch) if next(calls) < 20 else mse(forward, batch)

        return make_job(loss=loss)

    def states(policy: str) -> list[tuple[str, str]]:
        config = {"min_loss_scale": 64.0, "floor_policy": policy}
        _, events = train_job(job(), tmp_path / policy, **config)
        changes = [event.state for event in events if isinstance(event, PrecisionChanged)]
        return [(state.effective, state.reason) for state in changes]

    with pytest.raises(TrainingDivergedError, match="loss scale at its floor, 64"):
        states("halt")
    assert states("fallback_fp32") == [("fp16", "default"), ("fp32", "floor_policy")]
    assert states("skip") == [("fp16", "default")]


# -- a loss that is not finite -------------------------------------------------------------------


def test_the_textbook_takes_a_nan_loss_for_overflow(both, batch) -> None:
    textbook, trainer = both(growth_interval=2)
    for _ in range(3):
        textbook.step(batch, nan_loss)
        step(trainer, batch, nan_loss)
    assert textbook.scaler.get_scale() == 8192.0
    stats = trainer.get_stats()
    assert (stats["current_scale"], stats["overflow_steps"]) == (65536.0, 0)
    assert stats["nonfinite_loss_steps"] == 3


def test_one_nan_loss_ends_the_textbooks_fp32_training(both, batch, loss_fn) -> None:
    textbook, trainer = both("fp32")
    textbook.step(batch, nan_loss)
    step(trainer, batch, nan_loss)
    step(trainer, batch, loss_fn)
    assert weights(textbook).isnan().all()
    assert weights(trainer).isfinite().all()
    assert trainer.get_stats()["applied_steps"] == 1


@pytest.mark.usefixtures("every_step_is_read")
def test_what_nan_batches_leave_in_a_model_stays_in_the_textbooks(
    make_job, make_optimizer, tmp_path: Path
) -> None:
    """Skipping saves the weights; the running statistics are beyond it."""

    def loss() -> Loss:
        calls = iter(range(100))

        def poisoned(forward: Any, batch: Batch) -> Tensor:
            x = batch["x"] * math.nan if 9 <= next(calls) < 14 else batch["x"]
            return mse(forward, {**batch, "x": x})

        return poisoned

    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 1))

    job = make_job(epochs=3, model=normalised(), loss=loss())
    model = copy.deepcopy(job.model)
    textbook = Textbook(model, make_optimizer["adamw"](model.parameters()), scale=256.0)
    for epoch in range(3):
        for batch in job.batches(epoch):
            textbook.step(batch, job.loss)
    model.eval()
    assert weights(textbook).isfinite().all()
    assert math.isnan(job.evaluate(model).value)

    job = replace(job, loss=loss())
    evaluation, events = train_job(job, tmp_path, nonfinite_loss_patience=5)
    assert evaluation is not None
    assert math.isfinite(evaluation.value)
    notices = [event.event for event in events if isinstance(event, Notice)]
    assert notices == ["weights_restored"]


# -- clipping ------------------------------------------------------------------------------------


def test_clipping_gradients_while_they_are_scaled_stalls_sgd(both, batch, loss_fn) -> None:
    naive, trainer = both(optimizer="sgd", loss_scale=1024.0)
    begin = loss_fn(naive.forward, batch).item()
    for _ in range(50):
        loss = loss_fn(naive.forward, batch)
        naive.scaler.scale(loss).backward()
        clip_grad_norm_(naive.model.parameters(), 1.0)
        naive.scaler.step(naive.optimizer)
        naive.scaler.update()
        naive.optimizer.zero_grad()
        step(trainer, batch, loss_fn)
    assert loss_fn(naive.forward, batch).item() > 0.99 * begin
    assert loss_fn(trainer.model, batch).item() < 0.5 * begin


def test_a_clip_that_demands_finite_gradients_ends_at_the_first_overflow(both, batch) -> None:
    naive, trainer = both()
    naive.scaler.scale(infinite_gradient(naive.forward, batch)).backward()
    naive.scaler.unscale_(naive.optimizer)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(naive.model.parameters(), 1.0, error_if_nonfinite=True)
    before = weights(trainer)
    step(trainer, batch, infinite_gradient)
    assert torch.equal(weights(trainer), before)
    assert trainer.get_stats()["overflow_steps"] == 1


def test_overflow_on_step_1_ruins_the_textbooks_fused_sgd(
    both, batch, loss_fn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The momentum is left uninitialised; such memory is filled with NaN here, to be seen."""
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    textbook, trainer = both(optimizer="sgd", loss_scale=1024.0)
    torch.use_deterministic_algorithms(True)
    try:
        for loss in (infinite_gradient, loss_fn):
            textbook.step(batch, loss)
            step(trainer, batch, loss)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not weights(textbook).isfinite().any()
    assert weights(trainer).isfinite().all()
    assert trainer.get_stats()["applied_steps"] == 1


def test_the_textbooks_fused_sgd_dies_of_a_gradient_that_appears_late(both, batch, loss_fn) -> None:
    textbook, trainer = both(optimizer="sgd", loss_scale=64.0)
    for loop in (textbook, trainer):
        loop.model[0].requires_grad_(False)
    textbook.step(batch, loss_fn)
    step(trainer, batch, loss_fn)
    for loop in (textbook, trainer):
        loop.model[0].requires_grad_(True)
    with pytest.raises(TypeError, match="NoneType"):
        textbook.step(batch, loss_fn)
    step(trainer, batch, loss_fn)
    assert trainer.get_stats()["applied_steps"] == 2


# -- skipped steps -------------------------------------------------------------------------------


def test_a_fused_optimizer_hides_skipped_steps_from_the_textbook(both, batch, loss_fn) -> None:
    """Hooks after the step are what averages of weights and schedulers hang on."""
    textbook, trainer = both(loss_scale=64.0)
    rates = torch.optim.lr_scheduler.ExponentialLR(textbook.optimizer, gamma=0.5)
    textbook.optimizer.register_step_post_hook(lambda *_: rates.step())
    ours = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, gamma=0.5)
    for loss in (loss_fn, infinite_gradient, infinite_gradient):
        textbook.step(batch, loss)
        if trainer.backward_and_step(trainer.training_step(batch, loss)):
            ours.step()
    assert rates.get_last_lr() == [1e-2 / 8]
    assert ours.get_last_lr() == [1e-2 / 2]
    stats = trainer.get_stats()
    assert (stats["training_steps"], stats["applied_steps"], stats["overflow_steps"]) == (3, 1, 2)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-loop"])
def test_a_step_without_gradients_ends_the_textbook(both, batch, loss_fn, optimizer) -> None:
    textbook, trainer = both(optimizer=optimizer, loss_scale=64.0)

    def free(_forward: Any, _batch: Batch) -> Tensor:
        return torch.ones((), requires_grad=True) * 2.0

    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        textbook.step(batch, free)
    step(trainer, batch, free)
    step(trainer, batch, loss_fn)
    stats = trainer.get_stats()
    assert (stats["no_gradient_steps"], stats["applied_steps"]) == (1, 1)


# -- resuming ------------------------------------------------------------------------------------


def test_the_textbooks_fp32_state_cannot_become_fp16(both, batch, loss_fn) -> None:
    textbook32, trainer32 = both("fp32", "sgd", loss_scale=64.0)
    textbook16, trainer16 = both("fp16", "sgd", loss_scale=64.0)
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        textbook16.scaler.load_state_dict(textbook32.scaler.state_dict())
    step(trainer32, batch, loss_fn)
    with capture_logs() as logs:
        trainer16.load_state_dict(copy.deepcopy(trainer32.state_dict()))
        trainer32.load_state_dict(copy.deepcopy(trainer16.state_dict()))
    saved = [log["saved"] for log in logs if log["event"] == "checkpoint_of_other_precision"]
    assert saved == ["fp32", "fp16"]
    for trainer in (trainer16, trainer32):
        step(trainer, batch, loss_fn)
    torch.testing.assert_close(weights(trainer16), weights(trainer32), rtol=0, atol=1e-4)
    assert trainer32.get_stats()["applied_steps"] == 2


def test_a_half_model_saves_what_fp32_cannot_go_on_from(unit_weight) -> None:
    naive, optimizer = unit_weight()
    naive.half()
    for _ in range(100):
        naive(torch.ones(1, 1).half()).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    trainer = FP16Trainer(*unit_weight(), FP16TrainingConfig(cpu_half=True, loss_scale=8.0))
    trainer.cast_model_to_fp16()
    for _ in range(100):
        step(trainer, {"x": torch.ones(1, 1)}, output)
    saved = trainer.state_dict()["model"]["weight"]
    assert naive.float().weight.item() == 1.0
    assert saved.dtype == torch.float32
    assert saved.item() == pytest.approx(1.0 - 100 * 1e-5, abs=1e-5)


def test_a_checkpoint_without_the_scaler_resumes_elsewhere(
    both, make_trainer, batch, loss_fn, tmp_path: Path
) -> None:
    textbook, trainer = both(loss_scale=256.0, growth_interval=4)
    textbook.scaler.set_growth_interval(4)
    for _ in range(6):
        textbook.step(batch, loss_fn)
        step(trainer, batch, loss_fn)
    assert textbook.scaler.get_scale() == trainer.get_stats()["current_scale"] == 512.0

    torch.save({"model": textbook.model.state_dict()}, tmp_path / "naive.pt")
    resumed, _ = both(loss_scale=256.0)
    resumed.model.load_state_dict(torch.load(tmp_path / "naive.pt", weights_only=True)["model"])
    assert resumed.scaler.get_scale() == 256.0

    trainer.save_checkpoint(tmp_path / "ours.pt")
    again = make_trainer("fp16", loss_scale=256.0, growth_interval=4, seed=1)
    again.load_checkpoint(tmp_path / "ours.pt")
    for loop in (trainer, again):
        for _ in range(2):  # two of the four clean steps before the scale grows were saved
            step(loop, batch, loss_fn)
    assert again.get_stats() == trainer.get_stats()
    assert again.get_stats()["current_scale"] == 1024.0
    assert torch.equal(weights(again), weights(trainer))


# -- accumulation --------------------------------------------------------------------------------


def micro(batch: Batch, number: int) -> Batch:
    return {name: tensor[8 * number : 8 * number + 8] for name, tensor in batch.items()}


def test_unscaling_each_micro_batch_is_refused_by_the_scaler(both, batch, loss_fn) -> None:
    naive, trainer = both(optimizer="sgd", loss_scale=64.0, accumulate=2)
    _, whole = both(optimizer="sgd", loss_scale=64.0)

    def naive_micro_batch(number: int) -> None:
        naive.scaler.scale(loss_fn(naive.forward, micro(batch, number)) / 2).backward()
        naive.scaler.unscale_(naive.optimizer)
        clip_grad_norm_(naive.model.parameters(), 1.0)

    naive_micro_batch(0)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        naive_micro_batch(1)
    for number in (0, 1):
        step(trainer, micro(batch, number), loss_fn)
    step(whole, {name: tensor[:16] for name, tensor in batch.items()}, loss_fn)
    torch.testing.assert_close(weights(trainer), weights(whole), rtol=0, atol=2e-4)


def test_the_last_window_of_the_textbook_counts_micro_batches_that_it_has_not(
    both, batch, loss_fn
) -> None:
    naive, trainer = both("fp32", "sgd", max_grad_norm=None, accumulate=4)
    _, whole = both("fp32", "sgd", max_grad_norm=None)
    begin = weights(whole)
    for number in (0, 1):  # an epoch of half a window
        (loss_fn(naive.forward, micro(batch, number)) / 4).backward()
        step(trainer, micro(batch, number), loss_fn)
    naive.optimizer.step()
    trainer.finish_window()
    step(whole, {name: tensor[:16] for name, tensor in batch.items()}, loss_fn)
    torch.testing.assert_close(weights(naive) - begin, (weights(whole) - begin) / 2)
    torch.testing.assert_close(weights(trainer), weights(whole))


def test_a_flip_inside_a_window_mixes_gradients_of_two_scales(both, batch, loss_fn) -> None:
    naive, trainer = both(optimizer="sgd", max_grad_norm=None, loss_scale=1024.0, accumulate=2)
    begin = weights(naive)
    naive.scaler.scale(loss_fn(naive.forward, micro(batch, 0)) / 2).backward()
    naive.fp16, naive.scaler = False, torch.amp.GradScaler("cpu", enabled=False)
    naive.scaler.scale(loss_fn(naive.forward, micro(batch, 1)) / 2).backward()
    naive.scaler.step(naive.optimizer)

    step(trainer, micro(batch, 0), loss_fn)
    with pytest.raises(RuntimeError, match="1 of 2 micro-batches"):
        trainer.set_precision(FP32_BY_FLAG)
    step(trainer, micro(batch, 1), loss_fn)
    assert trainer.set_precision(FP32_BY_FLAG) == FP32_BY_FLAG
    assert (weights(naive) - begin).norm() > 100.0 * (weights(trainer) - begin).norm()


# -- half parameters -----------------------------------------------------------------------------


def test_half_parameters_fail_late_or_never_in_the_textbook(unit_weight) -> None:
    def half() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = unit_weight()
        return model.half(), optimizer

    batch = {"x": torch.ones(1, 1)}
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        Textbook(*half(), scale=8.0).step(batch, output)
    silent = Textbook(*half(), scale=8.0, max_norm=None)
    for _ in range(200):
        silent.step(batch, output)
    assert weights(silent).item() == 1.0  # each of the 200 updates was rounded away

    with pytest.raises(ValueError, match=r"weight is torch\.float16.*keep parameters float32"):
        FP16Trainer(*half())


# -- evaluation and the autocast region ----------------------------------------------------------


def test_one_region_around_training_and_evaluation_freezes_the_textbooks_weights(
    both, batch, loss_fn, make_job, tmp_path: Path
) -> None:
    """Until the outermost region ends, autocast computes with its first copies of the weights."""
    textbook, _ = both(loss_scale=256.0)
    with torch.autocast("cpu", dtype=torch.float16):
        losses = [textbook.step(batch, loss_fn) for _ in range(20)]
        evaluated = loss_fn(textbook.forward, batch).item()
    assert {*losses, evaluated} == {losses[0]}

    regions = []
    job = make_job(epochs=2)

    def evaluate(forward: Any) -> Evaluation:
        regions.append(torch.is_autocast_enabled("cpu"))
        return job.evaluate(forward)

    before = job.evaluate(job.model.eval()).value
    evaluation, _ = train_job(replace(job, evaluate=evaluate), tmp_path)
    assert regions == [False, False]
    assert evaluation is not None
    assert evaluation.value < before


@pytest.mark.parametrize("region", [torch.no_grad, torch.inference_mode])
def test_a_target_computed_without_gradients_costs_the_loss_none(both, batch, region) -> None:
    """Before pytorch/pytorch#165068, autocast's copy of a weight kept the first call's mode."""
    _, trainer = both(loss_scale=64.0)
    before = weights(trainer)

    def bootstrapped(forward: Any, batch: Batch) -> Tensor:
        with region():
            target = forward(batch["x"])
        return (forward(batch["x"]) - target.clone() - 1.0).square().mean()

    step(trainer, batch, bootstrapped)
    assert (weights(trainer) != before).all()


def test_a_callers_region_around_the_steps_freezes_nothing(both, batch, loss_fn) -> None:
    _, trainer = both(loss_scale=256.0)
    with torch.autocast("cpu", dtype=torch.float16):
        first = trainer.training_step(batch, loss_fn)
        trainer.step(first)
        assert not torch.equal(trainer.training_step(batch, loss_fn), first)
