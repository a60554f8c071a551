"""Overflows in the log: when the counters are read, at most one line in ten seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from logging.handlers import BufferingHandler

import pytest
import torch

from infrastructure.events import PrecisionState
from infrastructure.training.overflow_log import OverflowLog
from tests.infrastructure.training.losses import infinite_gradient, nan_loss

LOGGER = "infrastructure.training"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The lines of the trainer's logger since the last call."""
    handler = BufferingHandler(capacity=10_000)
    handler.setLevel(logging.WARNING)
    monkeypatch.setattr(logging.getLogger(LOGGER), "handlers", [handler])

    def lines() -> list[str]:
        found = [record.getMessage() for record in handler.buffer]
        handler.flush()
        return [line.removeprefix("Gradient overflow ") for line in found]

    return lines


def test_a_window_is_logged_with_its_steps_and_scales(lines) -> None:
    log = OverflowLog(scale=65536.0, clock=lambda: 0.0)
    log.observe(step=20, overflow_steps=0, scale=65536.0)
    assert lines() == []
    log.observe(step=40, overflow_steps=2, scale=16384.0)
    assert lines() == ["in 2 of steps 21 to 40, update skipped; loss scale 65536 -> 16384"]


def test_lines_are_ten_seconds_apart_and_none_is_lost(lines) -> None:
    now = 0.0
    log = OverflowLog(scale=65536.0, clock=lambda: now)
    for step in range(1, 1001):
        now = step * 0.02
        log.observe(step=step, overflow_steps=step, scale=2.0**-16)
    assert [line.split(",")[0] for line in lines()] == ["at step 1", "in 500 of steps 2 to 501"]
    now = 40.0
    log.observe(step=2000, overflow_steps=1000, scale=1.0)
    assert lines()[0].startswith("in 499 of steps 502 to 2000,")


def test_a_late_reading_changes_nothing(lines) -> None:
    log = OverflowLog(scale=65536.0, clock=lambda: 0.0)
    log.observe(step=40, overflow_steps=0, scale=8.0)
    log.observe(step=20, overflow_steps=0, scale=16.0)
    log.observe(step=41, overflow_steps=1, scale=4.0)
    assert lines() == ["at step 41, update skipped; loss scale 8 -> 4"]


def test_other_ranks_are_silent(lines) -> None:
    log = OverflowLog(scale=8.0, enabled=False)
    log.observe(step=1, overflow_steps=1, scale=4.0)
    assert lines() == []


# -- in the trainer --------------------------------------------------------------------------------


def test_backward_and_step_logs_the_step_and_both_scales(
    make_trainer, batch, loss_fn, lines
) -> None:
    trainer = make_trainer(loss_scale=256.0, growth_interval=2)
    for _ in range(2):
        assert trainer.backward_and_step(trainer.training_step(batch, loss_fn))
    assert not trainer.backward_and_step(trainer.training_step(batch, infinite_gradient))
    assert lines() == ["at step 3, update skipped; loss scale 512 -> 256"]


def test_step_logs_nothing_and_reads_nothing_until_the_counters_are_read(
    make_trainer, batch, loss_fn, lines, read_counter
) -> None:
    trainer = make_trainer(loss_scale=256.0)
    trainer.get_stats()
    losses = [trainer.training_step(batch, each) for each in (loss_fn, infinite_gradient)]
    trainer.step(losses[0])
    with read_counter() as counter:
        trainer.step(losses[1])
    assert counter.reads == 0
    assert lines() == []
    poll = trainer.start_reading()
    assert lines() == []
    poll()
    poll()
    assert lines() == ["in 1 of steps 1 to 2, update skipped; loss scale 256 -> 128"]


def test_get_stats_logs_too(make_trainer, batch, lines) -> None:
    trainer = make_trainer(loss_scale=256.0)
    trainer.step(trainer.training_step(batch, infinite_gradient))
    assert trainer.get_stats()["overflow_steps"] == 1
    assert lines() == ["at step 1, update skipped; loss scale 256 -> 128"]


def test_a_loss_that_is_not_finite_is_not_an_overflow(make_trainer, batch, lines) -> None:
    trainer = make_trainer()
    assert not trainer.backward_and_step(trainer.training_step(batch, nan_loss))
    assert trainer.get_stats()["nonfinite_loss_steps"] == 1
    assert lines() == []


def test_overflows_of_a_loaded_state_are_not_logged_again(make_trainer, batch, lines) -> None:
    first, second = make_trainer(loss_scale=256.0), make_trainer(loss_scale=256.0)
    first.step(first.training_step(batch, infinite_gradient))
    second.load_state_dict(first.state_dict())
    assert second.get_stats()["overflow_steps"] == 1
    assert lines() == []


def test_the_scale_of_another_precision_is_not_shown_as_the_one_before(
    make_trainer, batch, lines
) -> None:
    trainer = make_trainer("bf16")
    trainer.get_stats()
    trainer.set_precision(PrecisionState(requested="fp16", effective="fp16", reason="operator"))
    trainer.step(trainer.training_step(batch, infinite_gradient))
    trainer.get_stats()
    assert lines() == ["at step 1, update skipped; loss scale 32768"]


def test_the_training_loop_logs_overflows(make_job, train_in, tmp_path, lines) -> None:
    calls = iter(range(10**6))

    def sometimes(forward, batch) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(forward(batch["x"]), batch["y"])
        return infinite_gradient(forward, batch) if next(calls) == 3 else loss

    train_in(make_job(epochs=1, loss=sometimes), tmp_path)
    assert lines() == ["in 1 of steps 1 to 8, update skipped; loss scale 256 -> 128"]
