from __future__ import annotations

import math

import pytest
import torch

from infrastructure.training.step_record import StepRecord


def test_read_window_gives_mean_loss_and_last_norm(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp16", "sgd", loss_scale=64.0)
    losses = []
    for _ in range(4):
        loss = trainer.training_step(batch, loss_fn)
        losses.append(loss.item())
        trainer.step(loss)
    trainer.step(trainer.training_step(batch, lambda f, b: loss_fn(f, b) * math.nan))
    reading = trainer.start_reading()()
    assert reading is not None
    assert reading.loss == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert reading.nonfinite_loss_steps == 1
    empty = trainer.start_reading()()
    assert empty is not None
    assert math.isnan(empty.loss)
    assert math.isnan(empty.grad_norm)


def test_counts_do_not_depend_on_how_often_they_are_read():
    read_often, read_once = (StepRecord(torch.device("cpu")) for _ in range(2))
    outcomes = [(1.0, 2.0), (math.inf, 2.0), (1.0, math.nan), (math.nan, math.inf)] * 40
    for norm, loss in outcomes:
        for record in (read_often, read_once):
            record.add(torch.tensor(norm), torch.tensor(loss))
        read_often.start_reading(torch.ones(()))
    assert read_often.state_dict() == read_once.state_dict()
    assert read_once.state_dict()["overflow_steps"] == 40
    assert read_once.start_reading_skipped()() == 120
    reading = read_once.start_reading(torch.tensor(64.0))()
    assert (reading.consecutive_nonfinite_losses, reading.loss_scale) == (2, 64.0)
    assert not read_once.last_loss_was_finite
    read_once.reset_consecutive()
    assert read_once.last_loss_was_finite
