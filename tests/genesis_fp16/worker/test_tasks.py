"""Attempts of a policy agent with a fault, in this process: what they tell the daemon."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from genesis_fp16.domain.run import EXIT_CODES
from genesis_fp16.domain.run_spec import RunSpec, TrainerOptions
from genesis_fp16.worker.channel import CommandInbox
from genesis_fp16.worker.outcome import run_attempt
from infrastructure.events import EventTail, EventWriter, PrecisionState
from infrastructure.events.event import Finished

FP32 = PrecisionState(requested="fp32", effective="fp32", reason="operator")
Attempt = Callable[..., Finished]


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    """Run an attempt of `faulty_policy_agent` with the fault of this name, to its end."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    threads = torch.get_num_threads()

    def run(fault: str, **changes: object) -> Finished:
        spec = RunSpec(
            run_id="r1",
            attempt=1,
            incarnation="i1",
            agent="policy",
            entry_point="faulty_policy_agent:FaultyPolicyAgent",
            agent_folder=tmp_path / "agent",
            run_folder=tmp_path / "run",
            attempt_folder=tmp_path,
            seed=3,
            device="cpu",
            threads=1,
            precision=FP32,
            trainer=TrainerOptions(),
            budget_seconds=30.0,
            budget_transitions=10,
            stats_interval_steps=1,
            baseline_interval_steps=0,
            checkpoint_interval_seconds=60.0,
            keep_checkpoints=1,
            settings={"fault": fault},
        ).model_copy(update=changes)
        with EventWriter(spec.events_path) as events:
            return run_attempt(spec, events, CommandInbox(events))

    yield run
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("fault", "activity", "error", "remedy"),
    [
        ("no padding token", "building the training job", "PolicyModelError", "set tokenizer."),
        ("another tokenizer", "building the training job", "PolicyModelError", "load both from"),
        ("another architecture", "building the training job", "PolicyModelError", "take config"),
        ("long prompt", "checking the training job", "RolloutRequestError", "shorten the prompt"),
        ("no stop token", "checking the training job", "RolloutRequestError", "pass the end-of-"),
    ],
)
def test_a_policy_that_cannot_work_is_never_retried(
    attempt: Attempt, fault: str, activity: str, error: str, remedy: str
) -> None:
    finished = attempt(fault)
    assert EXIT_CODES[finished.outcome] == os.EX_CONFIG
    assert f"policy failed while {activity}: {error}: " in finished.error
    assert remedy in finished.error


def test_a_part_that_the_operator_misspells_is_never_retried(attempt: Attempt) -> None:
    finished = attempt("none", keep_fp32=("part:crtic",))
    assert finished.outcome == "misconfigured"
    assert "KEEP_FP32 of policy: keep_fp32 names 'part:crtic'" in finished.error


@pytest.mark.parametrize(
    ("fault", "error", "remedy"),
    [
        ("empty completion", "TokenBatchError: row 0", "leave the row"),
        ("NaN", "NonFiniteLogitsError: the rollout in fp32/fp32/fp32", "begin with"),
    ],
)
def test_a_fault_of_the_data_is_named_and_may_be_retried(
    attempt: Attempt, fault: str, error: str, remedy: str
) -> None:
    finished = attempt(fault)
    assert finished.outcome == "failed"
    assert error in finished.error
    assert remedy in finished.error


def test_a_rollout_that_never_ends_is_cut_and_the_best_epoch_is_published(
    attempt: Attempt, tmp_path: Path
) -> None:
    assert attempt("endless").outcome == "done"
    (published,) = (
        event for event in EventTail(tmp_path / "events.ndjson").read() if event.kind == "published"
    )
    assert published.reason == "reward 0.9, epoch 2"


@pytest.mark.process
def test_a_repetition_begins_with_what_the_repeated_run_began_with(
    attempt: Attempt, tmp_path: Path
) -> None:
    """The run has published its own model since."""
    runs = {name: tmp_path / name for name in ("first", "second", "twin")}
    for name, folder in runs.items():
        folder.mkdir()
        changes = {"run_id": name, "run_folder": folder, "attempt_folder": folder}
        repeats = runs["second"] if name == "twin" else None
        assert attempt("begins with its model", repeats=repeats, **changes).outcome == "done"

    def began_with(folder: Path) -> list[str]:
        events = EventTail(folder / "events.ndjson").read()
        return [event.fields["files"] for event in events if getattr(event, "event", "") == "began"]

    began = [began_with(folder) for folder in runs.values()]
    assert began == [[""], ["first"], ["first"]]
    published = {path.name for path in (tmp_path / "agent" / "published").iterdir()}
    assert published == {"first", "second"}
