from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from infrastructure.events import PrecisionState
from infrastructure.events.command import Stop
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.training.loop.lr_schedule import LearningRateSchedule


def at_times_infinite(forward, batch):
    """The gradient overflows where the data say so: the same in every attempt."""
    loss = nn.functional.mse_loss(forward(batch["x"]), batch["y"])
    return loss + torch.where(batch["x"][0, 0] > 0.5, 1e38, 0.0) * (loss - loss.detach())


def batches(count):
    generator = torch.Generator().manual_seed(3)
    for _ in range(count):
        x = torch.randn(8, 4, generator=generator)
        yield {"x": x, "y": x[:, :1]}


def scheduled(trainer, counts):
    scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, gamma=0.99)
    return scheduler, LearningRateSchedule(scheduler, trainer, counts)


@pytest.mark.parametrize("counts", ["attempted", "applied"])
def test_a_schedule_counts_the_configured_steps(make_trainer, counts):
    trainer = make_trainer("fp32")
    scheduler, schedule = scheduled(trainer, counts)
    for batch in batches(60):
        trainer.train_batch(batch, at_times_infinite)
        schedule.after_step()
    settled = {"attempted": trainer.training_steps, "applied": trainer.get_stats()["applied_steps"]}
    assert settled["applied"] < 50
    for _ in range(64):  # in which nothing is skipped
        trainer.train_batch({"x": torch.zeros(8, 4), "y": torch.ones(8, 1)}, at_times_infinite)
        schedule.after_step()
    assert scheduler.last_epoch == settled[counts] + 64


def test_steps_without_gradients_move_no_schedule(make_trainer, batch):
    trainer = make_trainer("fp32")
    scheduler, schedule = scheduled(trainer, "attempted")
    trainer.train_batch(batch, lambda *_: torch.zeros((), requires_grad=True) * 1.0)
    schedule.after_step()
    assert scheduler.last_epoch == 0


def test_skipped_steps_are_read_every_sixteen_steps(make_trainer, read_counter, monkeypatch):
    trainer, copies = make_trainer("fp32"), []
    start = trainer.record.start_reading_skipped
    monkeypatch.setattr(
        trainer.record, "start_reading_skipped", lambda: copies.append(1) or start()
    )
    _, schedule = scheduled(trainer, "applied")
    with read_counter() as counter:
        for batch in batches(64):
            trainer.train_batch(batch, at_times_infinite)
            schedule.after_step()
    assert (len(copies), counter.reads) == (4, 0)


@pytest.mark.process
@pytest.mark.parametrize("stop_at", [5, 15, 16, 17, 33, 47])
def test_a_resumed_schedule_keeps_its_pending_pauses(make_job, tmp_path: Path, stop_at):
    def job():
        return dataclasses.replace(
            make_job(epochs=7, loss=at_times_infinite), scheduler_counts="applied"
        )

    def run(folder, stop_after=None):
        steps = iter(range(1, 999))
        made = job()
        result = train(
            made,
            device=torch.device("cpu"),
            precision=PrecisionState(requested="fp16", effective="fp32", reason="flag"),
            config=FP16TrainingConfig(),
            options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0),
            folder=folder,
            emit=lambda _: None,
            commands=lambda: [Stop(reason="test")] if next(steps) == stop_after else [],
        )
        return result, torch.cat([p.detach().flatten() for p in made.model.parameters()])

    whole, expected = run(tmp_path / "whole")
    assert run(tmp_path / "parts", stop_at)[0].outcome == "stopped"
    resumed, weights = run(tmp_path / "parts")
    assert resumed.steps == whole.steps == 56
    assert torch.equal(weights, expected)


def test_a_wrong_count_is_named(make_job):
    with pytest.raises(ValueError, match="'all'"):
        dataclasses.replace(make_job(), scheduler_counts="all")


def test_an_average_of_weights_waits_for_applied_steps_without_a_read(make_trainer, read_counter):
    """Of the flag on the device, a skipped step moves no average; of the weights alone it does."""
    trainer = make_trainer("fp32")
    weights = list(trainer.model.parameters())
    averages = [w.detach().clone() for w in weights]
    with read_counter() as counter, torch.no_grad():
        for batch in batches(30):
            with torch.enable_grad():
                trainer.train_batch(batch, at_times_infinite)
            share = 0.1 * (1.0 - trainer.last_step_skipped)
            torch._foreach_lerp_(averages, weights, [share] * len(weights))
    assert counter.reads == 0

    exact = make_trainer("fp32")
    expected = [w.detach().clone() for w in exact.model.parameters()]
    for batch in batches(30):
        if exact.backward_and_step(exact.training_step(batch, at_times_infinite)):
            for average, weight in zip(expected, exact.model.parameters(), strict=True):
                average.lerp_(weight.detach(), 0.1)
    for ours, theirs in zip(averages, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
