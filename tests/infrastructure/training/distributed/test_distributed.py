"""Two real ranks over gloo, launched by torchrun; the folder `scenarios` is what they do."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from infrastructure.events import PrecisionState
from infrastructure.events.command import Stop
from tests.infrastructure.training.distributed.scenarios import jobs, trainers
from tests.patience import wait_until
from tests.preloaded import SCENARIOS, ForkedPopen

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[4]
STATE = TypeAdapter(PrecisionState)
NOT_KILLED = """
overflow_on_one_rank nan_loss_on_one_rank nan_on_one_shard accumulation methods policy hybrid
one_to_two two_to_one unequal_last_batches flip whole_ddp resume_fsdp2 stop_for_one go_on_from_one
policy_needs_restart auto go_back_together corrupt_shard different_jobs full_disk fsdp1_by_hand
keep_fp32 policy_flip policy_stop_for_one policy_go_on_from_one
policy_networks adapters telemetry buffers compiled
"""


@contextmanager
def torchrun(folder: Path, *names: str) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks that run the scenarios *names*; killed when the test is over."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "--max-restarts=0", f"--log-dir={folder / 'torchrun'}"]
    command += ["--no-python", sys.executable, "-P", "-m", SCENARIOS, str(folder), *names]
    with (folder / "log").open("ab") as log:
        process = ForkedPopen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the two ranks have been, and one process before them."""
    folder = tmp_path_factory.mktemp("ranks")
    trainer = trainers.trainer_of(trainers.network())
    for number in (0, 1, 2):
        trainer.step(trainer.training_step(trainers.micro_batch(number), trainers.mse))
    trainer.save_checkpoint(folder / "of-one.pt")
    jobs.run(jobs.job(), folder / "go-on-from-one", jobs.once(Stop(reason="test")))
    stop = jobs.after(3, Stop(reason="test"))
    jobs.run(jobs.language_job()[0], folder / "policy-one", stop)
    with torchrun(folder, *NOT_KILLED.split()) as process:
        wait_until(lambda: process.poll() is not None, "the scenarios")
    assert process.returncode == 0, (folder / "log").read_text()
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> Callable[[str], tuple[Any, Any]]:
    def read(name: str) -> tuple[Any, Any]:
        first, second = (json.loads((folder / f"{name}-{r}.json").read_text()) for r in (0, 1))
        return first, second

    return read


def of(result: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in result["events"] if event["kind"] == kind]


def one_process(numbers: list[int], precision="fp32", **config: Any) -> Any:
    """Summary of one trainer after the micro-batches *numbers*."""
    trainer = trainers.trainer_of(trainers.network(), precision, **config)
    for number in numbers:
        trainer.step(trainer.training_step(trainers.micro_batch(number), trainers.mse))
    trainer.finish_window()
    return trainers.summary(trainer)


# -- the step ------------------------------------------------------------------------------------


def test_an_overflow_on_one_rank_skips_the_step_on_all(results) -> None:
    for first, second in zip(*results("overflow_on_one_rank"), strict=True):
        assert first == second
        assert (first["overflow_steps"], first["nonfinite_loss_steps"]) == (1, 0), first["case"]
        assert first["current_scale"] == (128.0 if first["case"][1] == "fp16" else 1.0)
        assert first["kept"]
        assert first["moved"]


def test_a_nan_loss_on_one_rank_skips_the_step_on_all_and_is_not_an_overflow(results) -> None:
    for first, second in zip(*results("nan_loss_on_one_rank"), strict=True):
        assert first == second
        assert (first["overflow_steps"], first["nonfinite_loss_steps"]) == (0, 1), first["case"]
        assert first["current_scale"] == (256.0 if first["case"][1] == "fp16" else 1.0)
        assert first["kept"]
        assert first["moved"]


def test_buffers_are_as_if_the_batches_of_skipped_steps_had_been_left_out(results) -> None:
    for rank in results("buffers"):
        assert len(rank) == 24
        for result in rank:
            assert (result["applied"], result["same"]) == (8, True), result["case"]


def test_ddp_is_compiled_and_a_sharded_model_is_not(results) -> None:
    for rank in results("compiled"):
        for result in rank:
            assert result["same"], result["case"]
            if result["case"][0] == "ddp":
                assert (result["compiled"], result["refused"]) == (1, None)
            else:
                assert "FSDP2" in result["refused"]


def test_a_nan_on_one_shard_skips_the_step_on_all(results) -> None:
    first, second = results("nan_on_one_shard")
    assert first == second
    assert first["kept"]
    assert (first["overflow_steps"], first["current_scale"]) == (1, 128.0)


def test_accumulation_is_that_of_one_process_and_averages_once_a_window(results) -> None:
    first, second = results("accumulation")
    assert first == second
    for case, result in first.items():
        precision = case.split("-")[1]
        alone = trainers.trainer_of(
            trainers.network(), precision, trainers.sgd, accumulate=6, max_grad_norm=None
        )
        for number in range(22):
            alone.step(alone.training_step(trainers.micro_batch(number), trainers.mse))
            if number == 15:
                alone.finish_window()
        expected = trainers.summary(alone)
        tolerance = {"fp32": 1e-6, "fp16": 2e-3}[precision]
        assert result["weights"] == pytest.approx(expected["weights"], abs=tolerance), case
        assert result["training_steps"] == expected["training_steps"] == 4
    # two full windows before the partial one, one after it; nothing in between
    assert first["ddp-fp32"]["reductions"] == 3


def test_methods_and_submodules_of_a_distributed_model_are_averaged_too(results) -> None:
    def loss(forward: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        code = forward.method("encode", batch["x"])
        return (
            trainers.mse(forward, batch)
            + code.square().mean()
            + forward.method("head", code.detach()).square().mean()
        )

    for precision, tolerance in (("fp32", 1e-6), ("fp16", 2e-3)):
        alone = trainers.trainer_of(trainers.network(), precision, accumulate=2)
        for number in range(4):
            alone.step(alone.training_step(trainers.micro_batch(number), loss))
        expected = pytest.approx(trainers.weights(alone.model), abs=tolerance)
        for result, kind in product(results("methods"), ("ddp", "fsdp2")):
            assert result[f"{kind}-{precision}"]["weights"] == expected
            assert result[f"{kind}-{precision}"]["applied_steps"] == 2


def test_modules_kept_in_fp32_stay_there_on_all_ranks(results) -> None:
    for result in results("keep_fp32"):
        for kind in ("ddp", "fsdp2"):
            half, whole = "torch.float16", "torch.float32"
            assert result[kind]["dtypes"] == {"blocks.0": half, "blocks.1": whole, "head": half}
            assert result[kind]["applied_steps"] == 2
            assert result[kind]["live"] == result[kind]["weights"]  # raised in the running training
            assert result[kind]["weights"] == pytest.approx(result["ddp"]["weights"], abs=1e-3)
        assert "use parallel='fsdp2'" in result["refusal"]


def test_replicas_of_shards_count_once_in_the_norm(results) -> None:
    first, second = results("hybrid")
    assert first == second
    expected = one_process([0, 1, 2, 3], optimizer=trainers.sgd, accumulate=2)
    assert first["weights"] == pytest.approx(expected["weights"], abs=1e-6)


def test_a_policy_pins_the_precision_with_a_reason(results) -> None:
    for result in results("policy"):
        flip, start, cast, fused, partly = result["refusals"]
        assert flip.startswith("PinnedPrecisionError: FSDP2")
        assert "cannot be changed to fp32" in flip
        assert "cannot be changed to bf16" in start
        assert "several ranks" in cast
        assert "fused SGD" in fused
        assert "'head' is in DDP" in partly
        assert (result["applied_steps"], result["current_scale"]) == (2, 256.0)


# -- checkpoints ---------------------------------------------------------------------------------


def test_what_one_process_saved_two_ranks_shard(results) -> None:
    expected = one_process([0, 1, 2], "fp16")
    after = one_process([0, 1, 2, 5], "fp16")
    first, second = results("one_to_two")
    assert first == second
    assert first["loaded"]["weights"] == expected["weights"]
    assert first["loaded"]["training_steps"] == 3
    assert first["after"]["weights"] == pytest.approx(after["weights"], abs=2e-3)  # fp16


def test_what_two_ranks_saved_in_shards_any_number_loads(results, folder: Path) -> None:
    first, second = results("two_to_one")
    assert first == second
    assert first["again"]["weights"] == first["after"]["weights"]
    trainer = trainers.trainer_of(trainers.network())
    trainer.load_checkpoint(folder / "of-two.pt")
    assert trainers.summary(trainer) == first["saved"]
    trainer.step(trainer.training_step(trainers.micro_batch(5), trainers.mse))
    assert trainers.weights(trainer.model) == pytest.approx(first["after"]["weights"], abs=2e-3)


def test_a_full_disk_raises_on_every_rank(results) -> None:
    first, second = results("full_disk")
    assert first["ddp"] == second["ddp"]
    for refusals in (first, second):
        for kind in ("ddp", "fsdp2"):
            assert "not be written" in refusals[kind]


def test_fsdp1_is_refused_and_works_by_hand(results) -> None:
    for result in results("fsdp1_by_hand"):
        assert "FSDP1 hides" in result["refusal"]
        assert result["scales"] == [256.0, 128.0, 128.0]
        assert result["kept"] == [False, True, False]


# -- the loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["ddp-fp32", "ddp-fp16", "fsdp2-fp32"])
def test_five_batches_on_two_ranks_are_those_of_one_process(
    results, tmp_path: Path, case: str
) -> None:
    """Two ranks that take a batch each are one process that accumulates two."""
    precision = case.split("-")[1]
    first, second = (result[case] for result in results("unequal_last_batches"))
    job = replace(jobs.job(batches=5, optimizer=trainers.sgd), accumulate=2)
    alone = jobs.run(job, tmp_path, precision=precision)
    assert first["steps"] == second["steps"] == alone["steps"] == 6
    tolerance = {"fp32": 1e-6, "fp16": 2e-3}[precision]
    assert first["weights"] == pytest.approx(alone["weights"], abs=tolerance)
    assert first["mse"] == second["mse"] == pytest.approx(alone["mse"], abs=10 * tolerance)
    assert second["events"] == []
    assert sum(event["samples"] for event in of(first, "step_stats")) == 2 * 5 * 8
    losses = [event["loss"] for event in of(first, "step_stats")]
    assert losses == pytest.approx([e["loss"] for e in of(alone, "step_stats")], abs=tolerance)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_all_ranks_flip_after_the_same_step(results, parallel: str) -> None:
    first, second = (result[parallel] for result in results("flip"))
    assert first["dtypes"] == second["dtypes"]
    change = of(first, "precision_changed")[1]
    assert STATE.validate_python(change["state"]) == trainers.FP32
    flipped_at = change["step"]
    assert first["dtypes"] == ["torch.float16"] * flipped_at + ["float32"] * (24 - flipped_at)
    assert 0 < flipped_at < 24


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_rank_zero_alone_measures_auto(results, parallel: str) -> None:
    first, second = (result[parallel] for result in results("auto"))
    reports = of(first, "preflight_done")
    assert len(reports) == 1
    state = of(first, "precision_changed")[-1]["state"]
    verdict = reports[0]["report"]["verdict"]
    assert STATE.validate_python(state) == PrecisionState(
        requested="auto", effective=verdict, reason="measured"
    )
    assert first["last_dtype"] == second["last_dtype"]
    assert second["calls"] == 8  # its own micro-batches and no more
    assert first["calls"] > 50


def test_two_ranks_resume_bit_for_bit_from_shards(results) -> None:
    for result in results("resume_fsdp2"):
        assert result["stopped"]["outcome"] == "stopped"
        assert 0 < result["stopped"]["steps"] < result["whole"]["steps"]
        assert result["resumed"]["steps"] == result["whole"]["steps"]
        assert result["resumed"]["mse"] == result["whole"]["mse"]
    first, _ = results("resume_fsdp2")  # rank 0's plain model has the trained weights
    assert first["resumed"]["weights"] == first["whole"]["weights"]


def test_one_process_resumes_from_two_ranks(results, folder: Path, tmp_path: Path) -> None:
    stopped, _ = results("stop_for_one")
    done = jobs.run(jobs.job(), folder / "stop-for-one")
    assert of(done, "resumed")[0]["step"] == stopped["steps"] == 1
    assert done["outcome"] == "done"
    assert done["steps"] == 1 + (8 - 2) + 8  # the first step took two batches
    assert done["mse"] < 1.5 * jobs.run(jobs.job(), tmp_path)["mse"]


def test_two_ranks_resume_from_one_process(results) -> None:
    first, second = results("go_on_from_one")
    assert of(first, "resumed")[0]["step"] == 1
    assert first["steps"] == second["steps"] == 1 + 4 + 4  # seven batches are left, then eight


def test_a_corrupt_shard_costs_all_ranks_the_newest_checkpoint_only(results) -> None:
    first, second = results("corrupt_shard")
    steps = [event["step"] for event in of(first["saved"], "checkpoint_saved")]
    assert len(steps) >= 2
    assert of(first["resumed"], "resumed")[0]["step"] == steps[-2]
    assert "SHA-256" in of(first["resumed"], "notice")[0]["fields"]["error"]
    assert first["resumed"]["steps"] == second["resumed"]["steps"] == 12


def test_jobs_that_cannot_be_shared_are_refused_on_every_rank(results) -> None:
    first, second = results("different_jobs")
    assert first == second
    assert "[5, 6] batches" in first[0]
    assert "plain model" in first[1]


def test_a_flip_that_a_policy_forbids_happens_by_a_restart(results) -> None:
    for result in results("policy_needs_restart"):
        stopped, resumed = result["stopped"], result["resumed"]
        assert (stopped["outcome"], resumed["outcome"]) == ("stopped", "done")
    first, _ = results("policy_needs_restart")
    (notice,) = of(first["stopped"], "notice")
    assert notice["event"] == "precision_needs_restart"
    assert of(first["stopped"], "checkpoint_saved")[0]["step"] == first["stopped"]["steps"]
    assert of(first["resumed"], "resumed")[0]["step"] == first["stopped"]["steps"]
    assert of(first["resumed"], "precision_changed")[0]["state"]["effective"] == "fp32"
    assert all(event["fp16"] == 0 for event in of(first["resumed"], "step_stats"))


def test_losses_that_stay_nonfinite_restore_the_weights_on_all_ranks(results) -> None:
    first, second = results("go_back_together")
    assert (first["steps"], first["weights"]) == (second["steps"], second["weights"])
    assert [notice["event"] for notice in of(first, "notice")] == ["weights_restored"]


# -- the end of a rank ---------------------------------------------------------------------------


def test_a_killed_rank_ends_the_group_which_resumes_to_the_same_weights(
    results, tmp_path: Path
) -> None:
    (tmp_path / "pause").write_text("0.3")
    with torchrun(tmp_path, "slow_ddp") as group:

        def has_saved() -> bool:
            assert group.poll() is None, (tmp_path / "log").read_text()
            return any((tmp_path / "slow-ddp").glob("step-*.pt.json"))

        wait_until(has_saved, "a checkpoint")
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
        assert group.wait(timeout=300) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid-0").read_text()), 0)
    (tmp_path / "pause").write_text("0")
    with torchrun(tmp_path, "slow_ddp") as group:
        assert group.wait(timeout=300) == 0, (tmp_path / "log").read_text()
    again = [json.loads((tmp_path / f"slow_ddp-{rank}.json").read_text()) for rank in (0, 1)]
    assert 0 < of(again[0], "resumed")[0]["step"] < 12
    for result, whole in zip(again, results("whole_ddp"), strict=True):
        assert result["steps"] == whole["steps"] == 12
        assert result["weights"] == whole["weights"]
        assert result["next_random"] == whole["next_random"]
    assert again[0]["next_random"] != again[1]["next_random"]  # each rank drops out on its own


# -- a policy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_a_policy_overflows_on_one_rank_and_rolls_back_on_both(results, parallel: str) -> None:
    first, second = (result[parallel] for result in results("policy_flip"))
    assert (first["weights"] == second["weights"]) == (parallel == "ddp")  # else rank 0 has all
    assert torch.tensor(first["weights"]).isfinite().all()
    before, after = (event["state"] for event in of(first, "precision_changed"))
    assert before["roles"] == {
        "policy": "fp32/fp16/fp32",
        "rollout": "fp16/fp16/fp32",
        "reference": "fp16/fp16/fp32",
    }
    assert after["effective"] == "fp32"
    assert set(after["roles"].values()) == {"fp32/fp32/fp32"}
    stats = of(first, "step_stats")
    assert (sum(each["overflow"] for each in stats), first["steps"]) == (1, 4)
    assert {each["loss_scale"] for each in stats if each["precision"] == "fp16"} == {128.0}
    assert 0 < sum(each["fp16"] for each in stats) < 4


def test_a_policy_resumes_on_another_number_of_ranks(results, folder) -> None:
    stopped, _ = results("policy_stop_for_one")
    job, rounds = jobs.language_job()
    alone = jobs.run(job, folder / "policy-two")
    assert (stopped["outcome"], alone["outcome"]) == ("stopped", "done")
    assert of(alone, "resumed")[0]["step"] == stopped["steps"] > 0
    assert min(rounds) > 0, "the round under way is in the checkpoint"
    both = results("policy_go_on_from_one")
    assert [each["outcome"] for each in both] == ["done", "done"]
    assert of(both[0], "resumed")[0]["step"] > 0
    assert min(both[0]["rounds"]) > 0
    assert both[1]["rounds"] == [], "rank 0 generates"


@pytest.mark.parametrize("loss", ["flowrl", "ppo"])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_a_network_beside_the_policy_trains_on_both_ranks(results, loss, parallel) -> None:
    first, second = (result[f"{loss}-{parallel}"] for result in results("policy_networks"))
    assert first["outcome"] == second["outcome"] == "done"
    assert first["steps"] == second["steps"] == 4
    assert (first["weights"] == second["weights"]) == (parallel == "ddp")  # else rank 0 has all
    assert math.isfinite(first["weights"])
    assert all(each["overflow"] == 0 for each in of(first, "step_stats"))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_an_adapter_trains_on_both_ranks_and_resumes_bit_for_bit(results, parallel) -> None:
    for result in (each[parallel] for each in results("adapters")):
        outcomes = [result[part]["outcome"] for part in ("whole", "stopped", "resumed")]
        assert outcomes == ["done", "stopped", "done"]
        assert result["resumed"]["steps"] == result["whole"]["steps"] > result["stopped"]["steps"]
        assert result["resumed"]["weights"] == result["whole"]["weights"]
        assert math.isfinite(result["whole"]["weights"])


def test_rank_zero_alone_measures_lost_updates_and_the_training_stays_the_same(results) -> None:
    (first, first_without), (second, _) = (
        (each["ddp-1"], each["ddp-0"]) for each in results("telemetry")
    )
    assert first["steps"] == second["steps"] == 8
    assert first["weights"] == second["weights"] == first_without["weights"]
    assert first["next_random"] == first_without["next_random"]
    assert [each["step"] for each in of(first, "lost_updates_measured")] == [2, 4, 5, 6, 7, 8]
    [diagnosis] = of(first, "overflow_diagnosed")
    assert (diagnosis["step"], diagnosis["cause"]) == (3, "backward")
    assert second["events"] == []


def test_a_sharded_model_trains_without_telemetry_and_says_so(results) -> None:
    first, second = (each["fsdp2-1"] for each in results("telemetry"))
    assert first["outcome"] == second["outcome"] == "done"
    [notice] = [each for each in of(first, "notice") if each["event"] == "telemetry_not_measured"]
    assert "sharded" in notice["fields"]["error"]
    assert not of(first, "lost_updates_measured")
    assert not of(second, "notice")
