"""Jobs with parts in the training loop: events, resuming, flips, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.agent_contract import TrainingJob
from infrastructure.agent_contract.parts import NotComputedError
from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.command import Command, Stop
from infrastructure.events.event import (
    BaseEvent,
    BaselineCompared,
    Notice,
    PrecisionChanged,
    StepStats,
)
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.checkpoints import CheckpointError
from infrastructure.training.diagnostics.fp32_check import check_fp32_step
from infrastructure.training.loop import LoopOptions, TrainingResult, train
from infrastructure.training.loop.divergence import TrainingDivergedError
from tests.infrastructure.training.parts.actor_critic import PARTS, TARGETS, adamw, make_job

FP32 = PrecisionState(requested="fp16", effective="fp32", reason="override")


def run(
    job: TrainingJob,
    folder: Path,
    commands: Callable[[], list[Command]] = list,
    precision: str | PrecisionState = "fp16",
    config: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[TrainingResult, list[BaseEvent]]:
    events: list[BaseEvent] = []
    if isinstance(precision, str):
        precision = PrecisionState(requested="fp16", effective=precision, reason="default")
    given = {"cpu_half": True, "loss_scale": 4096.0, "growth_interval": 5} | (config or {})
    result = train(
        job,
        device=torch.device("cpu"),
        precision=precision,
        config=FP16TrainingConfig(**given),
        options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0, **options),
        folder=folder,
        emit=events.append,
        commands=commands,
    )
    return result, events


def at_call(number: int, command: Command) -> Callable[[], list[Command]]:
    """*command* when the loop asks for the *number*-th time."""
    calls = iter(range(10**6))
    return lambda: [command] if next(calls) == number else []


def weights(job: TrainingJob) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in job.model.state_dict().items()}


def assert_equal(one: TrainingJob, other: TrainingJob) -> None:
    states = weights(one), weights(other)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_events_count_every_step_of_every_part_once(tmp_path):
    result, events = run(make_job(), tmp_path)
    stats = [event for event in events if isinstance(event, StepStats)]
    assert result.steps == stats[-1].step == stats[-1].total_steps == 24 + 12 + 12
    assert sum(event.attempted for event in stats) == result.steps
    for name, expected in (("critic", 24), ("actor", 12), ("temperature", 12)):
        parts = [part for event in stats for part in event.parts if part.name == name]
        assert sum(part.attempted for part in parts) == expected
    overflows = sum(part.overflow for event in stats for part in event.parts)
    assert overflows == sum(event.overflow for event in stats) == result.stats["overflow_steps"] > 0
    assert sum(event.samples for event in stats) == 24 * 16


@pytest.mark.parametrize("stop_at", [1, 5, 8, 13, 20])
def test_a_stopped_job_resumes_bit_for_bit(stop_at, tmp_path):
    undisturbed, stopped, resumed = make_job(), make_job(), make_job()
    expected, _ = run(undisturbed, tmp_path / "undisturbed")
    first, _ = run(stopped, tmp_path / "run", at_call(stop_at, Stop(reason="test")))
    assert first.outcome == "stopped"
    result, _ = run(resumed, tmp_path / "run")
    assert result.stats == expected.stats
    assert_equal(resumed, undisturbed)


@pytest.mark.parametrize(
    "changed",
    [{"modules": ("critics.1",)}, {"parts": {"critic": "fp32"}}, {"parts": {"critic": "bf16"}}],
)
def test_what_was_raised_in_a_running_job_resumes_bit_for_bit(changed, tmp_path):
    state = PrecisionState(requested="fp16", effective="fp16", reason="default", **changed)

    def commands(stop_at: int | None = None) -> Callable[[], list[Command]]:
        given = {4: SetPrecision(state=state), stop_at: Stop(reason="test")}
        calls = iter(range(10**6))
        return lambda: [given[call]] if (call := next(calls)) in given else []

    undisturbed, stopped, resumed, half = (make_job() for _ in range(4))
    expected, _ = run(undisturbed, tmp_path / "undisturbed", commands())
    first, events = run(stopped, tmp_path / "run", commands(stop_at=11))
    assert first.outcome == "stopped"
    assert [e.state for e in events if isinstance(e, PrecisionChanged)][-1] == state
    result, _ = run(resumed, tmp_path / "run", precision=state)
    assert result.stats == expected.stats
    assert_equal(resumed, undisturbed)
    run(half, tmp_path / "half")
    assert not torch.equal(
        weights(half)["critics.1.0.weight"], weights(resumed)["critics.1.0.weight"]
    )


@pytest.mark.parametrize(
    ("changed", "limit"), [({}, math.inf), ({"actor": "fp32"}, 0.05), ({"actor": "bf16"}, 0.3)]
)
def test_comparisons_with_fp32_see_each_part_in_its_precision(changed, limit, tmp_path):
    def steep(forward, batch, computed):
        return 1e12 * PARTS[1].loss(forward, batch, computed)

    job = make_job(parts=[PARTS[0], replace(PARTS[1], loss=steep), PARTS[2]])
    state = PrecisionState(requested="fp16", effective="fp16", reason="default", parts=changed)
    stop = at_call(8, Stop(reason="test"))
    _, events = run(job, tmp_path, stop, precision=state, baseline_interval_steps=5)
    [compared, *_] = [event for event in events if isinstance(event, BaselineCompared)]
    assert (compared.gradient_error < limit) is bool(changed), compared


def test_a_flip_holds_for_all_parts_from_the_next_batch_on(tmp_path):
    job = make_job()
    result, events = run(job, tmp_path, at_call(6, SetPrecision(state=FP32)))
    (changed,) = [e for e in events if isinstance(e, PrecisionChanged) and e.step > 0]
    assert changed.state.effective == "fp32"
    later = [e for e in events[events.index(changed) :] if isinstance(e, StepStats)]
    assert {event.precision for event in later} == {"fp32"}
    assert all(part.loss_scale == 1.0 for event in later for part in event.parts)
    assert result.stats["fp16_steps"] == changed.step


def test_a_part_at_the_floor_of_its_scale_puts_all_in_fp32(tmp_path):
    """The critic's gradient overflows in every step; the other parts' scales stay high."""
    job = make_job(bad=4, epochs=12)
    job = replace(job, batches=lambda _: [dict(b, reward=b["reward"] + 1e9) for b in job_batches()])
    at_floor = {"min_loss_scale": 1024.0}
    _, events = run(job, tmp_path, config=at_floor, stats_interval_steps=2)
    (told,) = [e for e in events if isinstance(e, Notice) and e.event == "loss_scale_floor"]
    assert "gradients of part 'critic' still overflow" in str(told.fields)
    last = [event for event in events if isinstance(event, StepStats)][-1]
    assert last.precision == "fp32"
    halting = at_floor | {"floor_policy": "halt"}
    with pytest.raises(TrainingDivergedError, match="gradients of part 'critic' overflow"):
        run(replace(job, model=make_job().model), tmp_path / "halt", config=halting)


def job_batches() -> list[dict[str, torch.Tensor]]:
    return list(make_job().batches(0))


def test_checkpoints_of_other_parts_are_refused_by_name(tmp_path):
    run(make_job(), tmp_path, at_call(5, Stop(reason="test")))
    with pytest.raises(CheckpointError, match="critic, actor, temperature"):
        run(make_job(parts=PARTS[:2]), tmp_path)


def test_losses_that_stay_nan_fail_as_for_one_part(tmp_path):
    job = make_job()
    nan = replace(
        job, batches=lambda _: [dict(b, reward=b["reward"] * torch.nan) for b in job_batches()]
    )
    with pytest.raises(TrainingDivergedError, match="losses in a row of part 'critic' were not"):
        run(nan, tmp_path, config={"nonfinite_loss_patience": 5}, stats_interval_steps=1)


def test_what_needs_one_gradient_is_told_and_left_out(tmp_path):
    _, events = run(
        make_job(compile=True),
        tmp_path,
        config={"cuda_graph": True},
        telemetry_interval_steps=2,
        baseline_interval_steps=2,
        profile_steps=2,
    )
    notices = {e.event: e.fields for e in events if isinstance(e, Notice)}
    refused = {"telemetry_not_measured", "cuda_graph_refused", "compile_refused"}
    assert refused | {"profile_written"} <= notices.keys()
    assert any(event.kind == "baseline_compared" for event in events)
    assert "backward" in (tmp_path.parent / "profile" / "phases.txt").read_text()


def test_auto_precision_measures_the_joint_loss(tmp_path):
    result, events = run(make_job(), tmp_path, precision="auto")
    assert result.outcome == "done"
    assert any(event.kind == "preflight_done" for event in events)


def test_the_check_before_training_finds_a_wrong_order():
    check_fp32_step(make_job(), torch.device("cpu"))
    with pytest.raises(NotComputedError, match="temperature"):
        check_fp32_step(make_job(parts=[PARTS[0], PARTS[2], PARTS[1]]), torch.device("cpu"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"optimizer": adamw, "loss": lambda _f, _b: None}, "parts, or an optimizer"),
        ({"accumulate": 2}, "accumulate"),
        ({"scheduler": lambda _: None}, "scheduler"),
        ({"parts": [PARTS[0], PARTS[0]], "targets": ()}, "different names.*critic, critic"),
        ({"parts": [replace(PARTS[0], name=f"p{i}") for i in range(9)]}, "8 parts at most, got 9"),
        ({"parts": ()}, "targets"),
        ({"targets": 2 * TARGETS}, "one source only.*target, target"),
        ({"keep_fp32": ["part:crtic"]}, "'part:crtic', but .* its parts are critic, actor"),
    ],
)
def test_jobs_that_contradict_themselves_are_refused(changes, told):
    with pytest.raises(ValueError, match=told):
        make_job(**changes)


def test_a_name_of_a_part_and_of_a_module_is_refused():
    job = make_job()
    job.model.add_module("part:critic", torch.nn.Identity())
    with pytest.raises(ValueError, match="'part:critic', which is a part of the job and a module"):
        replace(job, keep_fp32=("part:critic",))


def test_a_job_needs_a_loss_or_parts():
    with pytest.raises(TypeError, match="optimizer and a loss, or parts"):
        make_job(parts=(), targets=())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "Actor"}, "'Actor'"),
        ({"trains": "actor"}, "list of names.*'actor'"),
        ({"every": 0}, "every of part 'critic'.*0"),
        ({"every": 1.5}, "every of part 'critic'.*1.5"),
        ({"max_grad_norm": -1.0}, "max_grad_norm of part 'critic'"),
    ],
)
def test_a_part_out_of_range_is_refused_by_name(changes, told):
    with pytest.raises(ValueError, match=told):
        replace(PARTS[0], **changes)


def test_a_part_that_never_changes_fails_the_training_by_name(tmp_path):
    def infinite(forward, batch, computed):
        value = PARTS[1].loss(forward, batch, computed)
        return value + (value - value.detach()) * 1e38 * 1e38

    job = make_job(parts=[PARTS[0], replace(PARTS[1], loss=infinite), PARTS[2]])
    with pytest.raises(TrainingDivergedError, match="12 steps changed part 'actor'"):
        run(job, tmp_path)
