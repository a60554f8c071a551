from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
import torch
from torch import nn

from infrastructure.agent_contract import Evaluation
from infrastructure.events import PrecisionState, SaveCheckpoint, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import (
    BaselineCompared,
    CheckpointSaved,
    Evaluated,
    Notice,
    PrecisionChanged,
    Resumed,
    StepStats,
)
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.checkpoints import CheckpointError
from infrastructure.training.loop import LoopOptions, TrainingResult, train
from infrastructure.training.loop.divergence import TrainingDivergedError
from tests.infrastructure.training.losses import infinite_gradient

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")


class Daemon:
    """Sends each command after the given step and keeps the events."""

    def __init__(self, **commands_at):
        self.script = {int(k.removeprefix("step")): v for k, v in commands_at.items()}
        self.events = []
        self.step = 0

    def commands(self):
        self.step += 1
        command = self.script.get(self.step)
        return [command] if command else []

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def total(self, name):
        return sum(getattr(event, name) for event in self.of(StepStats))


def run(
    job, folder: Path, daemon: Daemon | None = None, precision=FP16, config=None, **options
) -> tuple[TrainingResult, Daemon]:
    daemon = daemon or Daemon()
    result = train(
        job,
        device=torch.device("cpu"),
        precision=precision,
        config=FP16TrainingConfig(
            **{"cpu_half": True, "loss_scale": 256.0, "growth_interval": 10, **(config or {})}
        ),
        options=LoopOptions(**{"seed": 3, "checkpoint_interval_seconds": 3600.0, **options}),
        folder=folder,
        emit=daemon.events.append,
        commands=daemon.commands,
    )
    return result, daemon


def weights(job):
    return torch.cat([p.detach().flatten() for p in job.model.parameters()])


def test_every_step_is_reported_once(make_job, tmp_path: Path):
    result, daemon = run(make_job(epochs=3), tmp_path)
    assert result.outcome == "done"
    assert (result.steps, result.epochs) == (24, 3)
    assert daemon.total("attempted") == daemon.total("fp16") == 24
    assert daemon.total("samples") == 24 * 16
    assert daemon.of(StepStats)[-1].total_steps == 24
    losses = [e.metrics["mse"] for e in daemon.of(Evaluated)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert result.evaluation is not None
    assert result.evaluation.value == losses[-1]
    assert all(e.fp32_baseline_loss > 0 for e in daemon.of(Evaluated))


@pytest.mark.process
@pytest.mark.parametrize("stop_at", [1, 7, 8, 11, 23, 24])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_resuming_is_bit_exact(make_job, tmp_path: Path, stop_at, accumulate):
    whole_job = make_job(epochs=3, accumulate=accumulate)
    whole, _ = run(whole_job, tmp_path / "whole")
    stop_at = min(stop_at, whole.steps)
    stopped, _ = run(
        make_job(epochs=3, accumulate=accumulate),
        tmp_path / "parts",
        Daemon(**{f"step{stop_at}": Stop(reason="test")}),
    )
    assert (stopped.outcome, stopped.steps) == ("stopped", stop_at)
    torch.manual_seed(999)  # another process, another generator state
    job = make_job(epochs=3, accumulate=accumulate)
    resumed, daemon = run(job, tmp_path / "parts")
    assert daemon.of(Resumed)[0].step == stop_at
    assert resumed.steps == whole.steps
    assert daemon.total("attempted") == whole.steps - stop_at
    assert torch.equal(weights(job), weights(whole_job))
    assert resumed.evaluation == whole.evaluation


@pytest.mark.parametrize("begun", [FP16, FP32], ids=["in FP16", "in FP32"])
def test_a_resumed_run_knows_how_large_its_fp32_loss_was(make_job, tmp_path: Path, begun):
    """By it the guard judges whether the error of a loss that has become small means anything."""
    stop = Daemon(step20=Stop(reason="test"))
    _, first = run(make_job(epochs=3), tmp_path, stop, begun, baseline_interval_steps=1)
    losses = [event.fp32_loss for event in first.of(BaselineCompared)]
    losses += [event.fp32_baseline_loss for event in first.of(Evaluated)]
    _, second = run(make_job(epochs=3), tmp_path, baseline_interval_steps=1)
    resumed = second.of(BaselineCompared)[0]
    assert resumed.step == 21
    assert resumed.largest_fp32_loss == max(losses) > resumed.fp32_loss


def test_a_flip_takes_effect_at_the_next_step_and_loses_none(make_job, tmp_path: Path):
    daemon = Daemon(step5=SetPrecision(state=FP32), step9=SetPrecision(state=FP16))
    run(make_job(epochs=2), tmp_path, daemon)
    changes = daemon.of(PrecisionChanged)
    assert [(c.step, c.state.effective, c.state.reason) for c in changes] == [
        (0, "fp16", "default"),
        (5, "fp32", "flag"),
        (9, "fp16", "default"),
    ]
    assert [c.loss_scale for c in changes] == [256.0, 1.0, 256.0]
    assert daemon.total("attempted") == 16
    assert daemon.total("fp16") == 16 - 4
    assert all(e.fp16 in {0, e.attempted} for e in daemon.of(StepStats))


def test_on_a_plain_cpu_fp32_is_acknowledged_with_no_accelerator(make_job, tmp_path: Path):
    daemon = Daemon()
    train(
        make_job(epochs=1),
        device=torch.device("cpu"),
        precision=FP16,
        config=FP16TrainingConfig(),
        options=LoopOptions(seed=0),
        folder=tmp_path,
        emit=daemon.events.append,
        commands=daemon.commands,
    )
    assert str(daemon.of(PrecisionChanged)[0].state) == (
        "requested=fp16 effective=fp32 reason=no_accelerator"
    )
    assert daemon.total("fp16") == 0


def test_overflow_and_nan_losses_are_reported_apart(make_job, tmp_path: Path):
    calls = iter(range(100))

    def loss(forward, batch):
        value = nn.functional.mse_loss(forward(batch["x"]), batch["y"])
        call = next(calls)
        if call == 3:
            return value * math.nan
        return (value - value.detach()) * 1e37 if call in {5, 6} else value

    _, daemon = run(make_job(epochs=1, loss=loss), tmp_path)
    assert daemon.total("nonfinite_loss") == 1
    assert daemon.total("overflow") == 2
    assert daemon.total("applied") == 5


def test_checkpoints_are_taken_on_time_on_command_and_pruned(make_job, tmp_path: Path):
    _, daemon = run(
        make_job(epochs=1),
        tmp_path,
        Daemon(step4=SaveCheckpoint()),
    )
    assert [e.step for e in daemon.of(CheckpointSaved)] == [4]
    _, daemon = run(
        make_job(epochs=1), tmp_path / "b", checkpoint_interval_seconds=0.0, keep_checkpoints=2
    )
    assert len(daemon.of(CheckpointSaved)) == 8
    assert sorted(p.name for p in (tmp_path / "b").glob("*.pt")) == [
        "step-0000000007.pt",
        "step-0000000008.pt",
    ]


def test_a_corrupt_newest_checkpoint_costs_only_itself(make_job, tmp_path: Path):
    daemon = Daemon(step3=SaveCheckpoint(), step5=Stop(reason="test"))
    run(make_job(), tmp_path, daemon)
    newest = max(tmp_path.glob("*.pt"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    newest.write_bytes(data)
    result, daemon = run(make_job(), tmp_path)
    assert daemon.of(Resumed)[0].step == 3
    assert "SHA-256" in daemon.of(Notice)[0].fields["error"]
    assert result.steps == 24


def test_a_folder_that_cannot_be_written_costs_no_training(make_job, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    result, daemon = run(make_job(epochs=1), blocked / "x", checkpoint_interval_seconds=0.0)
    assert result.outcome == "done"
    assert {e.event for e in daemon.of(Notice)} == {"checkpoint_not_saved"}
    result, daemon = run(make_job(), blocked / "x", Daemon(step2=Stop(reason="test")))
    assert (result.outcome, result.steps) == ("stopped", 2)
    (notice,) = daemon.of(Notice)
    assert "not be written" in notice.fields["error"]


def test_a_checkpoint_that_cannot_be_written_is_tried_again_ever_more_rarely(
    make_job, tmp_path: Path, monkeypatch
):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")

    class Clock(Daemon):
        """Ten seconds pass with each step; from step 20 on the folder can be written."""

        def commands(self):
            now[0] += 10.0
            if self.step == 20:
                blocked.unlink()
            return super().commands()

    result, daemon = run(make_job(epochs=5), blocked, Clock(), checkpoint_interval_seconds=10.0)
    assert result.outcome == "done"
    assert len(daemon.of(Notice)) == 4  # after steps 1, 3, 7 and 15
    assert [event.step for event in daemon.of(CheckpointSaved)] == list(range(31, 41))


def test_a_job_without_batches_is_named(make_job, tmp_path: Path):
    with pytest.raises(ValueError, match="yields no batches"):
        run(make_job(batches_per_epoch=0), tmp_path)


def test_a_checkpoint_of_another_model_is_fatal_and_named(make_job, tmp_path: Path):
    run(make_job(), tmp_path, Daemon(step2=Stop(reason="test")))
    with pytest.raises(CheckpointError, match="does not fit"):
        run(make_job(model=nn.Linear(4, 1)), tmp_path)


@pytest.fixture
def every_step_is_read(monkeypatch):
    """Windows of one step, so that the reaction does not depend on the machine's speed."""
    monkeypatch.setattr("infrastructure.training.loop.statistics._SHORTEST_WINDOW_SECONDS", 0.0)


@pytest.mark.usefixtures("every_step_is_read")
@pytest.mark.parametrize("policy", ["skip", "fallback_fp32", "halt"])
def test_overflow_at_the_floor_meets_the_policy(make_job, tmp_path: Path, policy):
    config = {"min_loss_scale": 64.0, "floor_policy": policy}
    calls = iter(range(100))

    def overflow_until_the_last(forward, batch):
        if next(calls) < 7:
            return infinite_gradient(forward, batch)
        return forward(batch["x"]).mean()

    job = make_job(epochs=1, loss=overflow_until_the_last)
    daemon = Daemon()
    if policy == "halt":
        with pytest.raises(TrainingDivergedError, match=r"floor, 64.*Remedy"):
            run(job, tmp_path, daemon, config=config, stats_interval_steps=1)
        return
    run(job, tmp_path, daemon, config=config, stats_interval_steps=1)
    reasons = [event.state.reason for event in daemon.of(PrecisionChanged)]
    assert reasons == (["default"] if policy == "skip" else ["default", "floor_policy"])
    assert daemon.total("overflow") == 7
    assert daemon.total("fp16") == (8 if policy == "skip" else 2)


def nan_between(first, last):
    calls = iter(range(1000))

    def loss(forward, batch):
        value = nn.functional.mse_loss(forward(batch["x"]), batch["y"])
        return value * math.nan if first <= next(calls) <= last else value

    return loss


@pytest.mark.usefixtures("every_step_is_read")
def test_losses_that_stay_nonfinite_restore_the_last_good_checkpoint(make_job, tmp_path: Path):
    job = make_job(epochs=3, loss=nan_between(9, 13))
    daemon = Daemon(step6=SaveCheckpoint())
    result, _ = run(
        job, tmp_path, daemon, config={"nonfinite_loss_patience": 5}, stats_interval_steps=1
    )
    assert result.steps == 24
    assert daemon.total("nonfinite_loss") == 5
    (notice,) = daemon.of(Notice)
    assert notice.event == "weights_restored"
    assert "step-0000000006.pt" in notice.fields["error"]
    assert daemon.of(StepStats)[-1].consecutive_nonfinite_losses == 0


@pytest.mark.usefixtures("every_step_is_read")
def test_restored_weights_bring_back_running_statistics(make_job, tmp_path: Path):
    """Skipped steps leave the weights alone, but the forward passes had poisoned these."""

    def loss(forward, batch):
        x = batch["x"] * math.nan if 9 <= next(calls) < 14 else batch["x"]
        return nn.functional.mse_loss(forward(x), batch["y"])

    calls = iter(range(1000))
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 1))
    options = {"stats_interval_steps": 1, "checkpoint_interval_seconds": 0.0}
    result, daemon = run(
        make_job(epochs=3, model=model, loss=loss),
        tmp_path,
        config={"nonfinite_loss_patience": 5},
        **options,
    )
    assert math.isfinite(result.evaluation.value)
    assert [notice.event for notice in daemon.of(Notice)] == ["weights_restored"]


def test_an_evaluation_is_in_no_autocast_region(make_job, tmp_path: Path):
    regions = []
    job = make_job(epochs=2)

    def evaluate(forward):
        regions.append(torch.is_autocast_enabled("cpu"))
        return job.evaluate(forward)

    before = job.evaluate(job.model.eval()).value
    result, _ = run(replace(job, evaluate=evaluate), tmp_path)
    assert regions == [False, False]
    assert result.evaluation.value < before


@pytest.mark.usefixtures("every_step_is_read")
def test_restored_weights_that_do_not_help_fail_with_the_remedy(make_job, tmp_path: Path):
    options = {"config": {"nonfinite_loss_patience": 3}, "stats_interval_steps": 1}
    with pytest.raises(TrainingDivergedError, match="no checkpoint"):
        run(make_job(loss=nan_between(2, 999)), tmp_path / "a", **options)
    daemon = Daemon(step2=SaveCheckpoint())
    with pytest.raises(TrainingDivergedError, match=r"again .* step 2"):
        run(make_job(loss=nan_between(2, 999)), tmp_path / "b", daemon, **options)


@pytest.mark.usefixtures("every_step_is_read")
@pytest.mark.parametrize(("rollback_at", "in_fp32"), [(5, True), (99, False)])
def test_a_training_that_diverges_in_fp32_as_well_says_so(
    make_job, tmp_path: Path, rollback_at, in_fp32
):
    commands = {"step2": SaveCheckpoint(), f"step{rollback_at}": SetPrecision(state=FP32)}
    options = {"config": {"nonfinite_loss_patience": 3}, "stats_interval_steps": 1}
    with pytest.raises(TrainingDivergedError, match=r"again .* step 2") as caught:
        run(make_job(loss=nan_between(2, 999)), tmp_path, Daemon(**commands), **options)
    assert caught.value.in_fp32 is in_fp32


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"mse": 1.0}, "Evaluation, got dict"),
        ("changed", r"'mse' .*\['other'\]"),
    ],
)
def test_a_wrong_evaluation_is_named(make_job, tmp_path: Path, evaluation, message):
    if evaluation == "changed":
        metrics = {"mse": 1.0}
        evaluation = Evaluation(metrics=metrics, primary="mse", higher_is_better=False)
        metrics["other"] = metrics.pop("mse")
    job = replace(make_job(epochs=1), evaluate=lambda _forward: evaluation)
    with pytest.raises((TypeError, ValueError), match=message):
        run(job, tmp_path)


@pytest.mark.usefixtures("every_step_is_read")
def test_a_nonfinite_loss_does_not_replace_a_good_checkpoint(make_job, tmp_path: Path):
    _, daemon = run(
        make_job(epochs=1, loss=nan_between(3, 999)),
        tmp_path,
        checkpoint_interval_seconds=0.0,
        stats_interval_steps=1,
    )
    assert [event.step for event in daemon.of(CheckpointSaved)] == [1, 2, 3]


@pytest.mark.parametrize("loss", [nan_between(0, 999), infinite_gradient])
def test_a_training_that_changed_nothing_is_no_success(make_job, tmp_path: Path, loss):
    with pytest.raises(TrainingDivergedError, match="none of 8 steps"):
        run(make_job(epochs=1, loss=loss), tmp_path)


def test_statistics_longer_than_an_epoch_are_reacted_to(make_job, tmp_path: Path):
    with pytest.raises(TrainingDivergedError, match="no checkpoint"):
        run(
            make_job(epochs=9, loss=nan_between(2, 999)),
            tmp_path,
            config={"nonfinite_loss_patience": 5},
        )


def test_graphs_that_are_unavailable_cost_a_log_line_and_no_training(make_job, tmp_path: Path):
    config = FP16TrainingConfig(cpu_half=True, loss_scale=256.0, cuda_graph=True)
    with structlog.testing.capture_logs() as logs:
        result = train(
            make_job(epochs=1),
            device=torch.device("cpu"),
            precision=PrecisionState(requested="fp16", effective="fp16", reason="default"),
            config=config,
            options=LoopOptions(seed=3),
            folder=tmp_path,
            emit=lambda _: None,
            commands=list,
        )
    assert [entry["event"] for entry in logs] == ["cuda_graph_refused"]
    assert result.steps == 8


def with_slope(forward, batch):
    x = batch["x"].clone().requires_grad_()
    with torch.enable_grad():  # an evaluation computes the loss, too
        (slope,) = torch.autograd.grad(forward(x).sum(), x, create_graph=True)
    return (slope - 1.0).square().mean()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's
def test_a_job_that_cannot_be_compiled_is_trained_eagerly(make_job, tmp_path: Path):
    jobs = [replace(make_job(epochs=2, loss=with_slope), compile=each) for each in (False, True)]
    plain, _ = run(jobs[0], tmp_path / "plain")
    result, daemon = run(jobs[1], tmp_path / "compiled")
    (told,) = [event for event in daemon.of(Notice) if event.event == "compile_refused"]
    assert told.level == "warning"
    assert told.fields["error"]
    assert result == plain
    assert torch.equal(weights(jobs[0]), weights(jobs[1]))


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's
def test_a_compiled_job_flips_and_resumes(make_job, tmp_path: Path):
    if shutil.which("g++") is None:
        pytest.skip("torch's inductor compiles by g++, which this machine lacks")

    def job():
        return replace(make_job(epochs=2), compile=True)

    def flips(**also):
        return Daemon(step3=SetPrecision(state=FP32), step6=SetPrecision(state=FP16), **also)

    whole_job, resumed_job = job(), job()
    whole, daemon = run(whole_job, tmp_path / "whole", flips())
    assert len(daemon.of(PrecisionChanged)) == 3
    stopped, _ = run(job(), tmp_path / "parts", flips(step9=Stop(reason="test")))
    assert (stopped.outcome, stopped.steps) == ("stopped", 9)
    resumed, _ = run(resumed_job, tmp_path / "parts")
    assert resumed.evaluation == whole.evaluation
    assert torch.equal(weights(resumed_job), weights(whole_job))
    assert not [event for event in daemon.of(Notice) if event.event == "compile_refused"]


def test_modules_of_job_and_configuration_stay_in_fp32_until_the_training_ends(
    make_job, tmp_path: Path
):
    job = make_job(epochs=1)
    seen: dict[int, set[torch.dtype]] = {0: set(), 3: set()}
    for index, dtypes in seen.items():
        job.model[index].register_forward_hook(lambda *a, dtypes=dtypes: dtypes.add(a[-1].dtype))
    before = [set(vars(module)) for module in job.model.modules()]
    run(job, tmp_path / "1", config={"keep_fp32": ["3"]}, baseline_interval_steps=4)
    assert seen == {0: {torch.float32, torch.float16}, 3: {torch.float32}}
    assert [set(vars(module)) for module in job.model.modules()] == before
    seen[0].clear()
    run(replace(job, keep_fp32=["0"]), tmp_path / "2", config={"keep_fp32": ["3"]})
    assert seen == {0: {torch.float32}, 3: {torch.float32}}
    with pytest.raises(ValueError, match="keep_fp32 names 'head'"):
        run(replace(job, keep_fp32=["head"]), tmp_path / "3")


def test_an_error_of_a_step_leaves_the_modules_to_their_author(make_job, tmp_path: Path):
    def fail(_forward, _batch):
        raise RuntimeError("of the step")

    job = replace(make_job(), keep_fp32=("0",), loss=fail)
    with pytest.raises(RuntimeError, match="of the step"):
        run(job, tmp_path)
    assert "forward" not in vars(job.model[0])
