from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import nn

from infrastructure.agent_contract import TrainingJob
from infrastructure.events import PrecisionState
from infrastructure.events.command import SaveCheckpoint, Stop
from infrastructure.fleet import Fleet, FleetMember
from infrastructure.training import FP16Trainer, FP16TrainingConfig, MultiOptimizer
from infrastructure.training.evaluation_weights import (
    averaging_optimizers,
    evaluation_weights,
    use_evaluation_weights,
)
from infrastructure.training.loop import LoopOptions, TrainingResult, train
from tests.infrastructure.training.parts.actor_critic import PARTS
from tests.infrastructure.training.parts.actor_critic import make_job as make_job_of_parts

MakeJob = Callable[..., TrainingJob]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def schedule_free(job: TrainingJob, seen: list[torch.Tensor] | None = None) -> TrainingJob:
    """*job* with a schedulefree optimizer; *seen* gets the weights of each evaluation."""

    def evaluate(forward: Any) -> Any:
        if seen is not None:
            seen.append(weights(job.model))
        return job.evaluate(forward)

    return replace(
        job,
        optimizer=lambda parameters: AdamWScheduleFree(parameters, lr=0.01),
        scheduler=None,
        evaluate=evaluate,
    )


def run(job: TrainingJob, folder: Path, commands: dict[int, Any] | None = None) -> TrainingResult:
    """Train in FP16; *commands* by the number of their poll."""
    polls = count()

    def due() -> list[Any]:
        command = (commands or {}).get(next(polls))
        return [] if command is None else [command]

    return train(
        job,
        device=torch.device("cpu"),
        precision=PrecisionState(requested="fp16", effective="fp16", reason="default"),
        config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0, growth_interval=10),
        options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0),
        folder=folder,
        emit=lambda _event: None,
        commands=due,
        best_epoch=folder / "best-epoch.pt",
    )


def test_the_block_has_the_average_and_leaves_the_bits(make_trainer, batch, loss_fn) -> None:
    model = make_trainer().model
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.01)
    trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, loss_scale=256.0))
    for _ in range(5):
        trainer.train_batch(batch, loss_fn)
    stepped = weights(model)
    with evaluation_weights(optimizer):
        average = weights(model)
        assert not optimizer.param_groups[0]["train_mode"]
    assert not torch.equal(average, stepped)
    assert torch.equal(weights(model), stepped)
    assert optimizer.param_groups[0]["train_mode"]
    use_evaluation_weights(optimizer)
    assert torch.equal(weights(model), average)
    with evaluation_weights(optimizer):
        torch.testing.assert_close(weights(model), average)
    torch.testing.assert_close(weights(model), stepped)


def test_training_goes_on_after_eval_of_the_caller(make_trainer, batch, loss_fn) -> None:
    model = make_trainer().model
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.01)
    trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, loss_scale=256.0))
    for _ in range(2):
        trainer.train_batch(batch, loss_fn)
        optimizer.eval()
    trainer.train_batch(batch, loss_fn)
    assert trainer.get_stats()["applied_steps"] == 3


def test_members_are_asked_and_others_cost_nothing() -> None:
    model = nn.Linear(2, 1)
    plain = torch.optim.SGD([model.bias], lr=0.1)
    free = AdamWScheduleFree([model.weight])
    both = MultiOptimizer(plain, free)
    assert averaging_optimizers(both) == [free]
    assert averaging_optimizers(plain) == []
    both.train()
    assert free.param_groups[0]["train_mode"]
    both.eval()
    assert not free.param_groups[0]["train_mode"]


def test_evaluations_and_the_trained_model_have_the_average(make_job: MakeJob, tmp_path) -> None:
    seen: list[torch.Tensor] = []
    job = schedule_free(make_job(epochs=2), seen)
    result = run(job, tmp_path)
    assert result.steps == 16
    assert len(seen) == 2
    assert torch.equal(weights(job.model), seen[-1])
    assert result.evaluation is not None
    again = job.evaluate(job.model.eval())
    assert again.value == pytest.approx(result.evaluation.value)


def test_the_best_epoch_is_one_of_averages(make_job: MakeJob, tmp_path) -> None:
    seen: list[torch.Tensor] = []
    job = schedule_free(make_job(epochs=3), seen)
    worse = iter([1.0, 0.5, 2.0])
    evaluate = job.evaluate

    def graded(forward: Any) -> Any:
        return replace(evaluate(forward), metrics={"mse": next(worse)})

    run(replace(job, evaluate=graded, keep_best_epoch=True), tmp_path)
    assert torch.equal(weights(job.model), seen[1])


@pytest.mark.parametrize("stop_at", [3, 8, 13])
def test_resumes_bit_for_bit(make_job: MakeJob, tmp_path, stop_at) -> None:
    whole, parts = schedule_free(make_job()), schedule_free(make_job())
    undisturbed = run(whole, tmp_path / "whole")
    stopped = run(parts, tmp_path / "parts", {2: SaveCheckpoint(), stop_at: Stop(reason="test")})
    assert stopped.outcome == "stopped"
    torch.manual_seed(999)
    resumed_job = schedule_free(make_job())
    resumed = run(resumed_job, tmp_path / "parts")
    assert resumed.steps == undisturbed.steps
    assert torch.equal(weights(resumed_job.model), weights(whole.model))
    assert resumed.evaluation == undisturbed.evaluation


def muon_beside_adamw(parameters: Any) -> MultiOptimizer:
    given = list(parameters)
    matrices, rest = ([p for p in given if (p.ndim == 2) is flat] for flat in (True, False))
    return MultiOptimizer(torch.optim.Muon(matrices), torch.optim.AdamW(rest, fused=True))


def job_of_parts() -> TrainingJob:
    """An actor-critic whose critics have two optimizers, and whose actor is averaged."""
    critic, actor, temperature = PARTS
    parts = (
        replace(critic, optimizer=muon_beside_adamw),
        replace(actor, optimizer=lambda p: AdamWScheduleFree(p, lr=0.003)),
        temperature,
    )
    return make_job_of_parts(parts=parts)


@pytest.mark.parametrize("stop_at", [3, 8, 13])
def test_parts_resume_bit_for_bit(tmp_path, stop_at) -> None:
    whole, stopped, resumed = job_of_parts(), job_of_parts(), job_of_parts()
    evaluated: list[torch.Tensor] = []
    evaluate = whole.evaluate

    def seen(forward: Any) -> Any:
        evaluated.append(weights(whole.model))
        return evaluate(forward)

    undisturbed = run(replace(whole, evaluate=seen), tmp_path / "whole")
    assert undisturbed.stats["overflow_steps"] > 0
    assert torch.equal(weights(whole.model), evaluated[-1])
    run(stopped, tmp_path / "parts", {stop_at: Stop(reason="test")})
    assert run(resumed, tmp_path / "parts").evaluation == undisturbed.evaluation
    assert torch.equal(weights(resumed.model), weights(whole.model))


def test_a_fleet_trains_it_alone(make_trainer, batch, loss_fn) -> None:
    members = {}
    for name in ("a", "b"):
        model = copy.deepcopy(make_trainer().model)
        optimizer = AdamWScheduleFree(model.parameters(), lr=0.01)
        config = FP16TrainingConfig(cpu_half=True, loss_scale=256.0)
        members[name] = FleetMember(trainer=FP16Trainer(model, optimizer, config), loss=loss_fn)
    fleet = Fleet(members)
    assert fleet.alone == dict.fromkeys("ab", "its optimizer averages the weights")
    assert fleet.step(dict.fromkeys("ab", batch)) == {}
    assert [m.trainer.get_stats()["applied_steps"] for m in members.values()] == [1, 1]
