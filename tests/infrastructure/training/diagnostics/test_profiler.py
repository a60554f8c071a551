from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from infrastructure.events import PrecisionState
from infrastructure.events.event import Notice
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.profiler import StepProfile
from infrastructure.training.loop import LoopOptions, train

FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")


def run(job, folder: Path, steps: int) -> list[Notice]:
    events = []
    train(
        job,
        device=torch.device("cpu"),
        precision=FP32,
        config=FP16TrainingConfig(),
        options=LoopOptions(seed=3, profile_steps=steps),
        folder=folder / "checkpoints",
        emit=events.append,
        commands=list,
    )
    return [event for event in events if isinstance(event, Notice)]


def test_a_profile_names_the_phases_of_real_steps(make_job, tmp_path: Path):
    (notice,) = run(make_job(epochs=2), tmp_path, steps=6)
    assert (notice.event, notice.fields["steps"]) == ("profile_written", "6")
    table = (tmp_path / "profile" / "phases.txt").read_text()
    host = {line.split()[0]: float(line.split()[1]) for line in table.splitlines()[3:7]}
    assert list(host) == ["step", "forward", "backward", "optimizer"]
    assert 0 < host["forward"] + host["backward"] + host["optimizer"] <= host["step"]
    assert "aten::" in table
    trace = json.loads((tmp_path / "profile" / "trace.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("forward") == names.count("optimizer") == 6


def test_a_training_that_ends_before_its_profile_leaves_what_there_is(make_job, tmp_path: Path):
    (notice,) = run(make_job(epochs=1), tmp_path, steps=100)
    assert notice.fields["steps"] == "3"  # of eight


def test_what_ends_the_first_profiled_step_is_what_is_raised(make_job, loss_fn, tmp_path: Path):
    calls = []

    def loss(forward, batch):
        calls.append(1)
        if len(calls) == 6:  # the profile begins after five steps
            raise KeyError("the loss's own")
        return loss_fn(forward, batch)

    with pytest.raises(KeyError, match="the loss's own"):
        run(make_job(epochs=1, loss=loss), tmp_path, steps=6)


def test_without_a_profile_nothing_is_written_or_wrapped(make_job, tmp_path: Path):
    assert run(make_job(epochs=1), tmp_path, steps=0) == []
    assert not (tmp_path / "profile").exists()


def test_the_trainer_is_afterwards_as_it_was(make_trainer, loss_fn, batch, tmp_path: Path):
    trainer = make_trainer("fp32")
    before = dict(vars(trainer))
    profile = StepProfile(2, tmp_path, emit=lambda _: None, stepper=trainer, trainers=[trainer])
    for _ in range(9):
        trainer.train_batch(batch, loss_fn)
        profile.observe(trainer)
    assert vars(trainer).keys() == before.keys()
    assert trainer._backward is before["_backward"]
    assert (tmp_path / "phases.txt").exists()


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_folder_that_cannot_be_written_costs_no_training(make_job, tmp_path: Path, accumulate):
    (tmp_path / "profile").write_text("a file where the folder should be")
    (notice,) = run(make_job(epochs=4, accumulate=accumulate), tmp_path, steps=2)
    assert notice.event == "profile_not_written"
