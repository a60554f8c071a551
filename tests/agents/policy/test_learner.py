from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from agents.policy.learner import (
    HELD_OUT,
    PRIMARY,
    HeldOutProblems,
    PolicyLearner,
    is_reinforced,
    new_policy,
)
from agents.policy.objectives import NETWORKS
from agents.policy.settings import LossName, PolicySettings
from agents.policy.tasks import TASKS, Task, is_held_out
from infrastructure.agent_contract import Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionState
from infrastructure.events.command import Stop
from infrastructure.policy import TokenBatch
from infrastructure.policy.adapters import with_adapter
from infrastructure.policy.corrections import CORRECTIONS
from infrastructure.policy.mismatch import MismatchObserver
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.checkpoints import read_checkpoint
from infrastructure.training.diagnostics import check_fp32_step
from infrastructure.training.loop import LoopOptions, TrainingResult, train
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.rounds import first_batches
from infrastructure.training.rounds.kinds import untrained_roles

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")
SMALL = {"prompts_per_round": 4, "completions_per_prompt": 4, "rounds_per_epoch": 2, "rounds": 2}
TASK = TASKS["brackets"]


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def job_of(task: Task = TASK, *, warm: bool = False, **settings) -> Job:
    own = PolicySettings(task=task.name, **{**SMALL, **settings})
    learner = PolicyLearner(task=task, settings=own, seed=5, warm=warm)
    return learner.job(new_policy(task, 5))


def adapted_job(base: torch.dtype, **settings) -> Job:
    """The job of an adapter over a frozen base."""
    own = PolicySettings(task=TASK.name, **{**SMALL, **settings})
    learner = PolicyLearner(task=TASK, settings=own, seed=5, warm=True)
    return learner.job(with_adapter(new_policy(TASK, 5), 4, seed=5, base=base))


def run(
    job: Job, folder: Path, precision: str, stop_at: int = 0, observe_round=None
) -> TrainingResult:
    calls = iter(range(1, 10_000))
    return train(
        job,
        device=CPU,
        precision=PrecisionState(requested=precision, effective=precision, reason="default"),
        config=FP16TrainingConfig(cpu_half=True),
        options=LoopOptions(seed=5, checkpoint_interval_seconds=3600.0),
        folder=folder,
        emit=lambda _event: None,
        commands=lambda: [Stop(reason="test")] if next(calls) == stop_at else [],
        observe_round=observe_round,
    )


def weights(job: Job) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in job.model.parameters()])


def first_batch(job: Job, round_: int) -> Batch:
    return next(iter(job.batches(round_, untrained_roles(job, job.model, CPU))))


@pytest.mark.process
def test_it_learns_from_demonstrations_and_then_from_reward(tmp_path: Path) -> None:
    """A few rounds; whole learning curves are made by hand, see docs/how-to/policies.md."""
    task = replace(TASK, warm_up_rounds=25)
    job = job_of(task, rounds=10, rounds_per_epoch=35)
    before = job.evaluate(None).value
    early = job.warm_up_rounds - 1
    assert not is_reinforced(first_batch(job, early))
    result = run(job, tmp_path, "fp32")
    assert is_reinforced(first_batch(job, early))  # it solves enough
    assert result.steps == 2 * (25 + 10)
    assert result.evaluation is not None
    assert before < 0.02
    assert result.evaluation.value > 0.1
    assert set(result.evaluation.metrics) == {
        PRIMARY,
        f"{PRIMARY}_standard_error",
        f"{PRIMARY}_of_greedy_decoding",
        "correction_dropped_fraction",
        "correction_weight_mean",
        "correction_sequence_ess",
    }


def test_several_ranks_make_the_same_number_of_steps() -> None:
    job = job_of()
    roles = replace(untrained_roles(job, job.model, CPU), batches_per_step=3)
    for round_ in (0, job.warm_up_rounds):  # demonstrations, completions
        sizes = [
            len(TokenBatch.from_tensors(batch).tokens_BT) for batch in job.batches(round_, roles)
        ]
        assert len(sizes) == 2 * 3
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("precision", "loss"),
    [("fp32", "dr_grpo"), ("fp16", "dr_grpo"), ("bf16", "flowrl"), ("fp16", "ppo")],
)
def test_it_resumes_in_a_round_bit_for_bit(tmp_path: Path, precision: str, loss: str) -> None:
    changes = {"kl_coefficient": 0.05, "sync_every_rounds": 2, "correction": "token-tis"}
    changes["loss"] = loss
    whole = job_of(warm=True, **changes)
    expected = run(whole, tmp_path / "whole", precision)
    stopped = run(job_of(warm=True, **changes), tmp_path / "parts", precision, stop_at=5)
    assert (stopped.outcome, stopped.steps) == ("stopped", 3)
    job = job_of(warm=True, **changes)
    resumed = run(job, tmp_path / "parts", precision)
    assert resumed.evaluation == expected.evaluation
    assert torch.equal(weights(job), weights(whole))


@pytest.mark.parametrize(
    ("precision", "loss", "base"),
    [
        ("fp32", "flowrl", torch.float32),
        ("bf16", "flowrl", torch.float16),
        ("fp16", "ppo", torch.float16),
    ],
)
def test_an_adapter_resumes_in_a_round_bit_for_bit_and_its_base_stays(
    tmp_path: Path, precision: str, loss: str, base: torch.dtype
) -> None:
    changes = {"kl_coefficient": 0.05, "sync_every_rounds": 2, "loss": loss}
    whole = adapted_job(base, **changes)
    before = {name: each.clone() for name, each in whole.model.named_parameters()}
    expected = run(whole, tmp_path / "whole", precision)
    folder = tmp_path / "parts"
    stopped = run(adapted_job(base, **changes), folder, precision, stop_at=5)
    assert (stopped.outcome, stopped.steps) == ("stopped", 3)
    (path,) = folder.glob("step-*.pt")
    saved = read_checkpoint(path, CPU)
    for weights_of in (saved["trainer"]["model"], saved["rounds"]["reference"] or {}):
        assert all(".lora_" in name or name.startswith(NETWORKS[loss]) for name in weights_of)
    job = adapted_job(base, **changes)
    resumed = run(job, folder, precision)
    assert resumed.evaluation == expected.evaluation
    assert torch.equal(weights(job), weights(whole))
    for name, parameter in whole.model.named_parameters():
        if not name.startswith(NETWORKS[loss]):
            assert torch.equal(parameter, before[name]) == (".lora_" not in name)


def test_the_jobs_of_an_adapter_pass_the_check_and_their_mismatch_is_measured(
    tmp_path: Path,
) -> None:
    job, events = adapted_job(torch.float16, loss="flowrl"), []
    check_fp32_step(job, CPU)
    observer = MismatchObserver(job.log_probs, 1, events.append, cpu_half=True)
    run(job, tmp_path, "bf16", observe_round=observer)
    report = events[0].report
    assert (report.policy, report.rollout) == ("bf16", "bf16")
    assert report.floor_k3 < 1e-9
    assert report.k3 < 1e-3


def test_the_policy_and_not_the_rollout_computes_the_old_log_probabilities() -> None:
    job = job_of(warm=True)
    policy = PrecisionForward(job.model, CPU, Precision.BF16)
    roles = replace(untrained_roles(job, job.model, CPU), policy=policy)  # the rollout is in FP32
    with torch.no_grad():
        tensors = next(iter(job.batches(0, roles)))
        expected_BS = job.log_probs.policy(policy, tensors)
    recorded_BS, mask_BS = job.log_probs.recorded(tensors)
    old_BS = tensors["old_log_probs_BS"]
    torch.testing.assert_close(old_BS, expected_BS, rtol=0, atol=1e-5)
    assert (old_BS - recorded_BS)[mask_BS].abs().max() > 1e-3


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_every_correction_gives_a_finite_loss_and_says_what_it_leaves(correction: str) -> None:
    job = job_of(warm=True, correction=correction)
    (batch,) = first_batches(job, CPU)
    forward = PrecisionForward(job.model, CPU, Precision.FP32)
    assert job.loss(forward, batch).isfinite()
    far = {**batch, "old_log_probs_BS": batch["old_log_probs_BS"] - 3.0}
    near, off = job.round_metrics([batch, batch]), job.round_metrics([far])
    assert near["correction_dropped_fraction"] == 0.0
    assert near["correction_weight_mean"] == pytest.approx(1.0, abs=1e-4)
    by_ratio = ("token-tis", "sequence-tis", "icepop", "sequence-mask", "geometric-mask")
    if correction in by_ratio:  # the others judge a ratio of e^-3 of small probabilities as near
        assert off["correction_weight_mean"] < 0.9
    assert off["correction_sequence_ess"] < near["correction_sequence_ess"]


def test_the_penalty_is_reduced_as_the_loss_is() -> None:
    """Doubling a completion's divergent tokens doubles its penalty, as in Dr.GRPO."""
    job = job_of(warm=True, kl_coefficient=1.0)
    (batch,) = first_batches(job, CPU)
    still = {**batch, "advantages": torch.zeros_like(batch["advantages"])}
    tokens = batch["policy_response_mask_BS"].sum()
    still["reference_log_probs_BS"] = batch["old_log_probs_BS"] - 1.0
    forward = PrecisionForward(job.model, CPU, Precision.FP32)
    sequences, longest = len(batch["advantages"]), TASK.longest_answer + 1
    k3 = math.exp(-1.0)  # exp(r) - 1 - r with r = -1
    expected = k3 * tokens.item() / sequences / longest
    assert job.loss(forward, still).item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_its_job_passes_the_check_before_training(task: Task) -> None:
    check_fp32_step(job_of(task, kl_coefficient=0.1), CPU)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_problems_that_choose_the_epoch_do_not_decide_about_publication(task: Task) -> None:
    problems = HeldOutProblems.of(task)
    assert len(set(problems.choosing) | set(problems.deciding)) == task.held_out
    assert all(map(is_held_out, (*problems.choosing, *problems.deciding)))
    assert len(problems.choosing) == len(problems.deciding) >= HELD_OUT / 2


def test_a_warm_policy_gets_no_demonstrations() -> None:
    assert job_of(warm=True).warm_up_rounds == 0
    assert job_of().warm_up_rounds == TASK.warm_up_rounds


def test_its_mismatch_is_measured_without_effect(tmp_path: Path) -> None:
    plain, observed, events = job_of(warm=True), job_of(warm=True), []
    run(plain, tmp_path / "plain", "bf16")
    observer = MismatchObserver(observed.log_probs, 1, events.append, cpu_half=True)
    run(observed, tmp_path / "observed", "bf16", observe_round=observer)
    assert torch.equal(weights(plain), weights(observed))
    report = events[0].report
    assert (report.policy, report.rollout) == ("bf16", "bf16")
    assert report.floor_k3 < 1e-9 < report.k3


@pytest.mark.parametrize("loss", get_args(LossName))
def test_every_step_gives_every_parameter_a_gradient_as_ddp_expects(loss: str) -> None:
    job = job_of(loss=loss)
    forward = PrecisionForward(job.model, CPU, Precision.FP32)
    roles = replace(untrained_roles(job, job.model, CPU), policy=forward)
    for round_ in (0, job.warm_up_rounds):  # demonstrations, completions
        job.model.zero_grad(set_to_none=True)
        job.loss(forward, next(iter(job.batches(round_, roles)))).backward()
        assert all(parameter.grad is not None for parameter in job.model.parameters())
