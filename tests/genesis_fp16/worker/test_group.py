"""An attempt on two ranks as its parent sees it: real processes under torchrun, over gloo."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.worker.group import combine_reports
from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import (
    Finished,
    Notice,
    PhaseStarted,
    PrecisionChanged,
    Progress,
    Resumed,
    StepStats,
)
from tests.preloaded import output_of

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")
SLOW = {"pause": 0.01, "epochs": 1000}
Start = Callable[..., Any]


def leftovers(attempt: Any) -> list[psutil.Process]:
    """Living processes that write to the attempt's log."""
    log = attempt.spec.attempt_folder / "worker.log"
    return [process for process in psutil.process_iter() if output_of(process) == log]


def test_two_ranks_train_flip_and_stop_together_and_rank_0_does_the_rest(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    both = {"precision": FP16, "processes_per_run": 2, "baseline_interval_steps": 0}
    first = start(1, settings={**SLOW, "watch": True}, **both)
    for state in (FP32, FP16):
        first.until(lambda event: isinstance(event, StepStats))
        first.command(SetPrecision(state=state))
        first.until(lambda e, state=state: isinstance(e, PrecisionChanged) and e.state == state)
    first.until(lambda event: isinstance(event, StepStats))
    assert first.process.stdin is not None
    first.process.stdin.close()  # the daemon is gone
    assert first.end() == 75, first.log
    assert first.finished.outcome == "stopped"
    flips = [(tmp_path / "run" / f"dtypes-{rank}").read_text() for rank in (0, 1)]
    assert flips[0] == flips[1]
    assert flips[0].count("torch.float16") == 2

    second = start(2, settings={"epochs": 6}, **both)
    assert second.end() == 0, second.log
    assert second.of(Resumed)[0].step == first.of(StepStats)[-1].step
    trained = first.of(StepStats) + second.of(StepStats)
    assert sum(event.attempted for event in trained) == 150  # 6 epochs of 50 batches, by two
    kinds = [event.kind for event in second.events]
    assert [kinds.count(kind) for kind in ("started", "published", "finished")] == [1, 1, 1]
    assert [event.phase for event in second.of(PhaseStarted)] == ["train", "publish"]
    assert second.log.count("trains on 4") == 2
    assert len(list((tmp_path / "agent" / "replay").iterdir())) == 1
    assert (tmp_path / "agent" / "published" / "model.pt").exists()
    assert leftovers(first) + leftovers(second) == []
    left = {path.name.partition("_")[0] for path in scratch.iterdir()}
    assert left <= {"torchinductor"}, "torch's cache is one for each user, not for each run"


def test_with_an_fsdp2_policy_precision_changes_by_a_restart(start: Start) -> None:
    """As the daemon starts them: nothing is imported yet."""
    real = {"parallel": "fsdp2-policy", "settings": SLOW, "preloaded": False}
    first = start(1, precision=FP16, processes_per_run=2, **real)
    first.until(lambda event: isinstance(event, StepStats))
    first.command(SetPrecision(state=FP32))
    assert first.end() == 75, first.log
    notices = {event.event: event.fields for event in first.of(Notice)}
    assert notices["precision_needs_restart"]["reason"] == FP32.reason

    second = start(2, precision=FP32, settings={"epochs": 1})  # any number of ranks
    assert second.end() == 0, second.log
    assert second.of(Resumed)
    assert [event.state for event in second.of(PrecisionChanged)] == [FP32]


def test_an_end_while_rank_0_collects_ends_the_waiting_rank(start: Start, tmp_path: Path) -> None:
    stopped, killed = (
        start(
            number,
            processes_per_run=2,
            budget_transitions=1_000_000,
            settings={"collect": "endless"},
            agent_folder=tmp_path / str(number),
            run_folder=tmp_path / str(number),
        )
        for number in (1, 2)
    )
    for attempt in (stopped, killed):
        attempt.until(lambda event: isinstance(event, Progress))
    stopped.command(Stop(reason="test"))
    killed.process.kill()  # torchrun itself
    assert stopped.end() == 75, stopped.log
    assert killed.end() == -signal.SIGKILL
    psutil.wait_procs(leftovers(killed), timeout=120)
    assert leftovers(stopped) + leftovers(killed) == []


def test_the_error_of_the_failed_rank_is_reported(start: Start, tmp_path: Path) -> None:
    broken = start(1, processes_per_run=2, settings={"fails_on_rank": 1})
    wrong = start(2, processes_per_run=2, device="cuda:99", run_folder=tmp_path / "2")
    assert broken.end() == 1
    assert "this rank cannot" in broken.finished.error
    assert wrong.end() == 78
    assert "device 'cuda:99'" in wrong.finished.error


def failure(rank: int, code: int, seconds: int) -> ProcessFailure:
    failed = ProcessFailure(local_rank=rank, pid=1, exitcode=code, error_file=os.devnull)
    failed.timestamp = seconds
    return failed


def report(outcome: Any, error: str, seconds: float) -> Finished:
    return Finished(outcome=outcome, error=error, time=seconds)


def test_the_first_failure_is_the_reported_one(spec: RunSpec) -> None:
    """A rank that is killed writes no exit report; those that miss it do."""
    lost, wrong = report("failed", "connection lost", 10.95), report("misconfigured", "wrong", 10.5)
    stopped = report("stopped", "", 10.97)

    def combined(failures: list[ProcessFailure], reports: dict[int, Finished]) -> Finished:
        return combine_reports(spec, {failed.local_rank: failed for failed in failures}, reports)

    assert combined([], {0: stopped, 1: lost}) == stopped
    killed = combined([failure(0, 1, 11), failure(1, -9, 11)], {0: lost, 1: stopped})
    assert killed.outcome == "failed"
    assert "rank 1 of 2" in killed.error
    assert "SIGKILL" in killed.error
    assert combined([failure(0, 1, 11), failure(1, 78, 11)], {0: lost, 1: wrong}) == wrong
    assert combined([failure(0, 1, 11), failure(1, -9, 41)], {0: lost}) == lost
    assert combined([failure(0, 78, 10), failure(1, -15, 10)], {0: wrong}) == wrong
    assert "exit code 3" in combined([failure(1, 3, 11)], {0: stopped}).error
    assert combined([], {}).outcome == "failed"
