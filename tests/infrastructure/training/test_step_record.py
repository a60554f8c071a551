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


def test_rows_of_stacks_count_as_numbers_of_their_own_bit_for_bit():
    """Alone, in a fleet, in another place of it, and back: as one after the other alone."""
    torch.manual_seed(0)
    alone, in_turn = (StepRecord(torch.device("cpu")) for _ in range(2))
    for step in range(500):
        stack_G2 = torch.rand(3 if step % 120 < 70 else 2, 2)
        row = 1 if step % 150 < 90 else 0
        stack_G2[row, step % 2] *= 1.0 if step % 7 else math.inf
        norm, loss = stack_G2[row].clone().unbind()
        alone.add(norm, loss)
        if step % 40 < 5:
            in_turn.add(norm, loss)
        else:
            in_turn.add_row(stack_G2, row)
        if step % 170 == 169:
            assert in_turn.state_dict() == alone.state_dict()
            scale = torch.ones(())
            assert in_turn.start_reading(scale)() == alone.start_reading(scale)()
    assert in_turn.state_dict()["overflow_steps"] > 0


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
