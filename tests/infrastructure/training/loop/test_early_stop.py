from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract import Evaluation
from infrastructure.events.command import Stop
from infrastructure.events.event import Evaluated, Notice
from infrastructure.training.loop.divergence import TrainingDivergedError
from infrastructure.training.loop.early_stop import EarlyStop
from tests.infrastructure.training.loop.test_train import Daemon, nan_between, run, weights

LOSSES = st.lists(
    st.sampled_from([0.1, 0.2, 0.3, 0.4, math.nan, math.inf]), min_size=1, max_size=12
)


def of_loss(loss: float, **more: float) -> Evaluation:
    return Evaluation(metrics={"loss": loss}, primary="loss", higher_is_better=False, **more)


@given(LOSSES, st.integers(1, 4), st.data())
def test_it_ends_after_as_many_evaluations_without_a_better_one(
    losses: list[float], patience: int, data: st.DataObject
) -> None:
    resumed_after = data.draw(st.integers(0, len(losses)))
    early_stop, best, since = EarlyStop(patience), math.inf, 0
    for epoch, loss in enumerate(losses, start=1):
        if epoch == resumed_after:
            state, early_stop = early_stop.state_dict(), EarlyStop(patience)
            early_stop.load_state_dict(state)
        early_stop.note(of_loss(loss), epoch)
        best, since = (loss, 0) if loss < best else (best, since + 1)
        assert bool(early_stop.reason) == (since >= patience)
        if early_stop.reason and best < math.inf:
            assert f"epoch {losses.index(best) + 1}" in early_stop.reason


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_evaluations_are_compared_by_their_own_direction_or_selection_loss(higher_is_better):
    sign = 1.0 if higher_is_better else -1.0
    plain, selected = EarlyStop(1), EarlyStop(1)
    for epoch, (value, loss) in enumerate([(0.1, 0.3), (0.2, 0.3)], start=1):
        metrics = {"metric": sign * value}
        evaluation = Evaluation(
            metrics=metrics, primary="metric", higher_is_better=higher_is_better
        )
        plain.note(evaluation, epoch)
        selected.note(replace(evaluation, selection_loss=loss), epoch)
    assert plain.reason == ""
    assert re.search("last 1 evaluations .* epoch 1$", selected.reason)


def test_without_patience_it_never_ends() -> None:
    early_stop = EarlyStop(None)
    for epoch in range(1, 30):
        early_stop.note(of_loss(math.nan), epoch)
    assert early_stop.reason == ""


def worsening(make_job, epochs=8, **changes):
    """A job whose evaluations are 3, 2, 1, 2, 3, ..., whatever its weights."""
    losses = iter([3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0][changes.pop("evaluated", 0) :])
    job = replace(make_job(epochs=epochs), **changes)
    return replace(job, evaluate=lambda _forward: of_loss(next(losses)))


def test_a_training_ends_early_with_the_weights_and_rates_of_a_longer_one(make_job, tmp_path: Path):
    whole = worsening(make_job)
    run(whole, tmp_path / "whole", Daemon(step40=Stop(reason="after five epochs")))
    early = worsening(make_job, patience=2)
    result, daemon = run(early, tmp_path / "early")
    assert (result.outcome, result.epochs, result.steps) == ("done", 5, 40)
    assert torch.equal(weights(early), weights(whole))
    (notice,) = (each for each in daemon.of(Notice) if each.event == "training_stopped_early")
    assert (notice.fields["epoch"], notice.fields["epochs"]) == ("5", "8")
    assert re.search("last 2 evaluations .* epoch 3$", notice.fields["reason"])


@pytest.mark.parametrize("stop_at", [24, 25, 32, 39, 40])
def test_a_resumed_training_ends_where_it_would_have_ended(make_job, tmp_path: Path, stop_at: int):
    uninterrupted = worsening(make_job, patience=2)
    whole, _ = run(uninterrupted, tmp_path / "whole")
    stop = Daemon(**{f"step{stop_at}": Stop(reason="test")})
    stopped, _ = run(worsening(make_job, patience=2), tmp_path / "parts", stop)
    assert stopped.outcome == "stopped"
    before = len(stop.of(Evaluated))
    job = worsening(make_job, patience=2, evaluated=before)
    resumed, _ = run(job, tmp_path / "parts")
    assert (resumed.epochs, resumed.steps) == (whole.epochs, whole.steps) == (5, 40)
    assert torch.equal(weights(job), weights(uninterrupted))


def test_losses_that_are_not_finite_are_a_failure_and_no_early_end(make_job, tmp_path: Path):
    job = worsening(make_job, patience=2, loss=nan_between(25, 999))
    options = {"config": {"nonfinite_loss_patience": 20}, "stats_interval_steps": 1}
    with pytest.raises(TrainingDivergedError, match="in a row"):
        run(job, tmp_path, **options)


def test_patience_is_at_least_one(make_job) -> None:
    with pytest.raises(ValueError, match=r"patience .*got 0"):
        replace(make_job(), patience=0)
