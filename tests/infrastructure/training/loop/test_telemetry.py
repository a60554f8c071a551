from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import (
    BaseEvent,
    LostUpdatesMeasured,
    Notice,
    OverflowDiagnosed,
    StepStats,
)
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics import RepeatedPasses
from infrastructure.training.loop import LoopOptions, telemetry, train
from infrastructure.training.loop.divergence import TrainingDivergedError
from infrastructure.training.loop.telemetry import TelemetryObserver
from tests.infrastructure.training.losses import nan_loss
from tests.infrastructure.training.overflowing import BackwardScaled, Guarded, Scaled
from tests.infrastructure.training.uncopyable import UNCOPYABLE

CPU = torch.device("cpu")
EVERY_STEP = {"telemetry_interval_steps": 1, "stats_interval_steps": 1}


@pytest.fixture
def _unlimited(monkeypatch):
    """Every step may be measured, and every step is read."""
    monkeypatch.setattr(telemetry, "_COST_SHARE", math.inf)
    monkeypatch.setattr(telemetry, "_PAUSE_STEPS", 1)
    monkeypatch.setattr("infrastructure.training.loop.statistics._SHORTEST_WINDOW_SECONDS", 0.0)


def net(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 16), *layers, nn.SiLU(), nn.Linear(16, 1))


def diagnoses(events: list[BaseEvent]) -> list[OverflowDiagnosed]:
    return [each for each in events if isinstance(each, OverflowDiagnosed)]


def measurements(events: list[BaseEvent]) -> list[LostUpdatesMeasured]:
    return [each for each in events if isinstance(each, LostUpdatesMeasured)]


@pytest.mark.usefixtures("_unlimited")
@pytest.mark.parametrize(
    ("layers", "module", "operation"),
    [
        ((Guarded(),), "1 (Guarded)", "exp"),
        ((Scaled(1e5), Scaled(1e-5)), "1 (Scaled)", "mul"),
    ],
    ids=["finite loss", "infinite loss"],
)
def test_an_overflow_in_the_forward_pass_is_told_with_its_module(
    train_in, make_job, tmp_path: Path, layers, module, operation
):
    events: list[BaseEvent] = []
    job = make_job(epochs=1, model=net(*layers))
    with pytest.raises(TrainingDivergedError):  # no step was applied
        train_in(job, tmp_path, events=events, **EVERY_STEP)
    [first, *_] = diagnoses(events)
    assert (first.cause, first.module) == ("forward", module)
    assert first.operation.startswith(operation)
    assert not first.lower_scale_helps
    assert first.overflows == first.step == 1
    assert first.seconds > 0.0


@pytest.mark.usefixtures("_unlimited")
def test_an_overflow_in_the_backward_pass_is_told_with_its_module(
    train_in, make_job, tmp_path: Path
):
    job = make_job(epochs=3, model=net(BackwardScaled(1e5)))
    _, events = train_in(job, tmp_path, **EVERY_STEP)
    [first, *_] = diagnoses(events)
    assert (first.cause, first.module) == ("backward", "1 (BackwardScaled)")
    assert first.lower_scale_helps
    assert first.loss_scale == 256.0


@pytest.mark.usefixtures("_unlimited")
def test_a_loss_that_fp32_cannot_compute_either_is_told(train_in, make_job, tmp_path: Path):
    events: list[BaseEvent] = []
    with pytest.raises(TrainingDivergedError):
        train_in(make_job(epochs=1, loss=nan_loss), tmp_path, events=events, **EVERY_STEP)
    assert {each.cause for each in diagnoses(events)} == {"fp32"}


def test_many_overflows_are_diagnosed_before_the_reaction_although_they_cost_too_much(
    train_in, make_job, tmp_path: Path, monkeypatch
):
    """The scale comes down from 256 to its floor, 2**-16, in 24 steps."""
    monkeypatch.setattr("infrastructure.training.loop.statistics._SHORTEST_WINDOW_SECONDS", 0.0)
    job = make_job(epochs=4, model=net(Guarded()))
    _, events = train_in(job, tmp_path, **EVERY_STEP)
    assert [(each.cause, each.overflows) for each in diagnoses(events)] == [("forward", 10)]
    [floor] = [each for each in events if isinstance(each, Notice)]
    assert floor.event == "loss_scale_floor"
    assert events.index(diagnoses(events)[0]) < events.index(floor)


@pytest.mark.usefixtures("_unlimited")
def test_underflow_and_stagnation_of_a_healthy_training_are_small(
    train_in, make_job, tmp_path: Path
):
    _, events = train_in(make_job(epochs=1), tmp_path, **EVERY_STEP)
    found = measurements(events)
    assert [each.step for each in found] == [2, 3, 4, 5, 6, 7, 8]
    assert all(each.zero < 0.01 and each.stagnation < 0.1 for each in found)
    assert {each.precision for each in found} == {"fp16"}
    assert {each.loss_scale for each in found} == {256.0}


@pytest.mark.usefixtures("_unlimited")
def test_gradients_too_small_for_fp16_are_told_with_their_module(
    train_in, make_job, tmp_path: Path
):
    model = net(BackwardScaled(1e-12))
    faint = model[0].weight.numel() + model[0].bias.numel()
    _, events = train_in(make_job(epochs=1, model=model), tmp_path, **EVERY_STEP)
    first = measurements(events)[0]
    assert first.zero == faint / sum(each.numel() for each in model.parameters())
    assert first.underflow_module == "0 (Linear)"


@pytest.mark.usefixtures("_unlimited")
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_weights_that_the_steps_leave_alone_are_told(train_in, make_job, tmp_path: Path, precision):
    """SGD's updates of about 1e-10 are below half of the last place of most weights."""

    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=1e-10, fused=True)

    job = replace(make_job(epochs=1), optimizer=optimizer)
    _, events = train_in(job, tmp_path, precision=precision, **EVERY_STEP)
    found = measurements(events)
    assert found[0].stagnation > 0.9
    assert found[0].stagnation_module == "0 (Linear)"
    assert (found[0].zero is None) == (precision == "fp32")


@pytest.mark.usefixtures("_unlimited")
def test_weights_that_are_not_trained_do_not_stagnate(train_in, make_job, tmp_path: Path):
    model = net()

    def optimizer(_parameters):
        return torch.optim.AdamW(model[2].parameters(), lr=1e-2, fused=True)

    job = replace(make_job(epochs=1, model=model), optimizer=optimizer)
    _, events = train_in(job, tmp_path, **EVERY_STEP)
    assert measurements(events)[0].stagnation < 0.1


@pytest.mark.usefixtures("_unlimited")
def test_weights_with_a_gradient_of_zero_do_not_stagnate(train_in, make_job, tmp_path: Path):
    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=1e-2, fused=True)

    job = replace(make_job(epochs=1, model=net(Scaled(0.0))), optimizer=optimizer)
    _, events = train_in(job, tmp_path, **EVERY_STEP)
    assert measurements(events)[0].stagnation == 0.0  # only the last bias has a gradient


@pytest.mark.process
@pytest.mark.usefixtures("_unlimited")
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_a_training_ends_bitwise_the_same_with_telemetry_and_without(
    train_in, make_job, tmp_path: Path, precision, accumulate
):
    ended = []
    for name, options in (("with", EVERY_STEP), ("without", {})):
        torch.manual_seed(7)
        model = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.SiLU(), nn.Linear(16, 1)
        )
        job = make_job(epochs=3, accumulate=accumulate, model=model)
        result, events = train_in(job, tmp_path / name, precision=precision, **options)
        counts = [
            sum(getattr(each, outcome) for each in events if isinstance(each, StepStats))
            for outcome in ("applied", "overflow")
        ]
        value = torch.tensor([result.evaluation.value, *counts])
        ended.append({**job.model.state_dict(), "ended": value})
        assert bool(measurements(events)) == bool(options)
    with_telemetry, without = ended
    assert all(torch.equal(with_telemetry[name], without[name]) for name in without)


@pytest.mark.usefixtures("_unlimited")
def test_a_training_that_is_resumed_and_rolled_back_ends_the_same(make_job, tmp_path: Path):
    fp16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
    fp32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")

    def run(folder: Path, commands, **options):
        step = iter(range(1, 100))
        events: list[BaseEvent] = []
        job = make_job(epochs=3)
        train(
            job,
            device=CPU,
            precision=fp16,
            config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0, growth_interval=10),
            options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0, **options),
            folder=folder,
            emit=events.append,
            commands=lambda: commands.get(next(step), []),
        )
        weights = torch.cat([each.detach().flatten() for each in job.model.parameters()])
        return weights, {each.precision for each in measurements(events)}

    flip = [SetPrecision(state=fp32)]
    whole, _ = run(tmp_path / "whole", {12: flip})
    run(tmp_path / "parts", {7: [Stop(reason="test")]}, **EVERY_STEP)
    resumed, precisions = run(tmp_path / "parts", {5: flip}, **EVERY_STEP)
    assert torch.equal(resumed, whole)
    assert precisions == {"fp16", "fp32"}


def test_a_step_that_is_not_measured_is_not_read_and_nothing_is_kept(
    make_trainer, loss_fn, batch, read_counter
):
    trainer = make_trainer()
    passes = RepeatedPasses(trainer.model, loss_fn, CPU)
    observer = TelemetryObserver(passes, 1000, lambda _: None)
    trainer.train_batch(batch, loss_fn)  # makes the optimizer's state
    with read_counter() as counter:
        for _ in range(5):
            observer.before_step(trainer, batch)
            trainer.train_batch(batch, loss_fn)
            observer.observe(trainer)
    assert counter.reads == 0
    assert not [each for each in vars(observer).values() if each is batch]
    assert observer.seconds == 0.0


@pytest.mark.process
def test_measurements_take_at_most_their_share_of_the_time_of_the_steps(
    make_trainer, loss_fn, batch
):
    """A step takes 1 s, a measurement 2 s: the clock advances by 1 s whenever it is read.

    Eight steps are set aside for the first one, and every tenth step is asked about.
    """
    trainer, events, time = make_trainer(), [], iter(range(10**9))
    passes = RepeatedPasses(trainer.model, loss_fn, CPU)
    observer = TelemetryObserver(passes, 10, events.append, clock=lambda: float(next(time)))
    for step in range(1, 1001):
        observer.before_step(trainer, batch)
        trainer.train_batch(batch, loss_fn)
        observer.observe(trainer)
        stats = StepStats(step=step, applied=1, seconds=1.0, loss_scale=1.0, precision="fp16")
        observer.count(stats)
        assert observer.seconds <= 0.009 * step
    assert [each.step for each in measurements(events)] == [890, 900, 910, 920]


@pytest.mark.usefixtures("_unlimited")
@pytest.mark.parametrize("uncopyable", UNCOPYABLE)
def test_a_model_that_cannot_be_copied_costs_a_notice_and_no_training(
    train_in, make_job, tmp_path: Path, uncopyable
):
    result, events = train_in(make_job(epochs=3, model=uncopyable()), tmp_path, **EVERY_STEP)
    assert result.outcome == "done"
    [notice] = [each for each in events if isinstance(each, Notice)]
    assert notice.event == "telemetry_not_measured"
    assert f"'last' of the model ({uncopyable.__name__})" in notice.fields["error"]


@pytest.mark.usefixtures("_unlimited")
def test_numbers_drawn_in_half_precision_are_not_compared_with_fp32(
    train_in, make_job, tmp_path: Path
):
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    _, events = train_in(make_job(epochs=1, model=net(Noisy())), tmp_path, **EVERY_STEP)
    assert {each.zero for each in measurements(events)} == {None}
    assert all(each.stagnation is not None for each in measurements(events))
