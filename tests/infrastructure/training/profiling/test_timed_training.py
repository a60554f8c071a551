from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract import Job, TrainingJob
from infrastructure.events import PrecisionState
from infrastructure.events.profile_report import STEP_PHASES
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.phase_clock import PhaseClock
from infrastructure.training.loop import LoopOptions, TrainingEnv
from infrastructure.training.profiling import time_training, training_costs
from infrastructure.training.profiling.timed_training import TimedTraining
from tests.infrastructure.training.bandit import Bandit

CPU = torch.device("cpu")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")


def measure(job: Job, folder: Path, *, seconds: float = 0.0) -> TimedTraining:
    env = TrainingEnv(
        device=CPU,
        precision=FP32,
        config=FP16TrainingConfig(),
        options=LoopOptions(seed=3),
        folder=folder / "checkpoints",
        emit=lambda _event: None,
        commands=tuple,
    )
    return time_training(job, PhaseClock(), env, seconds=seconds, checkpoint_interval_seconds=0.001)


def test_a_part_of_a_long_training_stands_for_all(
    make_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    timed = measure(make_job(epochs=1000), tmp_path)
    times = timed.times
    assert times.first_steps == 5
    assert 1 <= times.steady_steps < 20
    assert (times.total_steps, times.complete, times.epochs) == (8000, False, 1000)
    assert timed.precision.effective == "fp32"
    costs = {each.phase: each for each in training_costs(times)}
    assert {*STEP_PHASES} - {"statistics"} <= costs.keys()
    assert costs["forward"].whole == 7995
    assert costs["evaluate"].whole == 1000
    assert costs["checkpoint"].measured == 2
    assert all(each.wall_seconds >= 0.0 for each in costs.values())
    assert len(list((tmp_path / "checkpoints").iterdir())) >= 1


def test_a_short_training_is_measured_whole(
    make_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    times = measure(make_job(epochs=2), tmp_path, seconds=60.0).times
    assert (times.complete, times.total_steps) == (True, 16)
    costs = {each.phase: each for each in training_costs(times)}
    assert (costs["forward"].measured, costs["forward"].whole) == (11, 11)
    assert (costs["evaluate"].measured, costs["evaluate"].whole) == (2, 2)


def test_batches_without_a_length_leave_the_number_of_steps_unknown(
    make_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    job = make_job(epochs=1000)
    timed = measure(replace(job, batches=lambda epoch: iter(job.batches(epoch))), tmp_path)
    assert timed.times.total_steps is None


def test_an_error_of_a_step_is_what_is_raised(
    make_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    def fail(_forward: object, _batch: object) -> torch.Tensor:
        raise KeyError("the loss's own")

    with pytest.raises(KeyError, match="the loss's own"):
        measure(replace(make_job(), loss=fail), tmp_path)


def test_the_rounds_of_a_policy_are_not_taken_for_those_of_its_warm_up(tmp_path: Path) -> None:
    bandit = Bandit(epochs=1000, warm_up_rounds=3000)
    timed = measure(bandit.job, tmp_path)
    assert (timed.times.warm_up_rounds, timed.times.rounds) == (3000, 1000)
    costs = {each.phase: each for each in training_costs(timed.times)}
    assert costs["warm-up"].whole == 3000
    assert (costs["rollout"].measured, costs["rollout"].whole) == (1, 1000)
    assert [round_ for round_, *_ in bandit.seen] == [3000]
    assert "3000 rounds" in timed.remarks[-1]


def test_rounds_that_were_generated_are_counted(tmp_path: Path) -> None:
    timed = measure(Bandit(warm_up_rounds=1).job, tmp_path, seconds=60.0)
    costs = {each.phase: each for each in training_costs(timed.times)}
    assert (costs["rollout"].measured, costs["rollout"].whole) == (7, 7)
    assert timed.remarks == ()
