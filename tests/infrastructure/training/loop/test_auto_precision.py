"""``auto`` in a training: measured once, kept, and never above a demand for FP32."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract import TrainingJob
from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.event import BaseEvent, Notice, PrecisionChanged, PreflightDone
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.distributed import Ranks
from infrastructure.training.loop import LoopOptions, train
from infrastructure.training.loop.auto_precision import AutoPrecision
from infrastructure.training.precision import device_name, resolve

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")
AUTO = PrecisionState(requested="auto", effective="auto", reason="default")
BY_FLAG = PrecisionState(requested="auto", effective="fp32", reason="flag")
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="operator")
WHERE = f"{device_name(CPU)}, 1 threads"


@pytest.fixture
def training(
    make_job: Callable[..., TrainingJob], tmp_path: Path
) -> Callable[..., tuple[TrainingJob, list[BaseEvent]]]:
    def run(wish: PrecisionState, *then: PrecisionState, cpu_half: bool = True):
        """Train with *wish*, then with each of *then* from one step to the next."""
        events: list[BaseEvent] = []
        wishes = iter(then)

        def commands() -> Iterator[SetPrecision]:
            for state in wishes:
                yield SetPrecision(state=state)
                break

        job = make_job(epochs=2)
        train(
            job,
            device=CPU,
            precision=wish,
            config=FP16TrainingConfig(cpu_half=cpu_half, loss_scale=256.0),
            options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0),
            folder=tmp_path,
            emit=events.append,
            commands=commands,
        )
        return job, events

    return run


def states(events: list[BaseEvent]) -> list[PrecisionState]:
    return [event.state for event in events if isinstance(event, PrecisionChanged)]


def reports(events: list[BaseEvent]) -> list[PreflightDone]:
    return [event for event in events if isinstance(event, PreflightDone)]


def keep(folder: Path, precision: str, device: str = WHERE) -> None:
    choice = {"device": device, "precision": precision}
    (folder / "precision-choice.json").write_text(json.dumps(choice))


def test_auto_becomes_the_measured_precision(training, tmp_path: Path) -> None:
    _, events = training(AUTO, cpu_half=False)
    (report,) = reports(events)
    verdict = report.report.verdict
    (state,) = states(events)
    assert state == PrecisionState(requested="auto", effective=verdict, reason="measured")
    kept = json.loads((tmp_path / "precision-choice.json").read_text())
    assert kept["precision"] == verdict
    assert kept["device"] == WHERE


def test_a_saved_choice_is_not_measured_again(training, tmp_path: Path) -> None:
    """BF16 on a CPU without cpu_half: only a measurement may choose it."""
    keep(tmp_path, "bf16")
    _, events = training(AUTO, cpu_half=False)
    assert reports(events) == []
    assert [state.effective for state in states(events)] == ["bf16"]


def test_another_device_is_measured_again(training, tmp_path: Path) -> None:
    keep(tmp_path, "bf16", device="NVIDIA H100, 1 threads")
    _, events = training(AUTO)
    assert len(reports(events)) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"precision": "auto"}', "nul"])
def test_an_unreadable_choice_is_reported_and_measured_again(
    training, tmp_path: Path, text: str
) -> None:
    (tmp_path / "precision-choice.json").write_text(text)
    _, events = training(AUTO)
    assert len(reports(events)) == 1
    assert "precision_choice_unreadable" in [e.event for e in events if isinstance(e, Notice)]


def test_a_demanded_precision_is_not_measured(training) -> None:
    _, events = training(BY_FLAG, FP16)
    assert reports(events) == []
    assert states(events) == [BY_FLAG, FP16]


def test_auto_in_mid_run_is_measured_once_without_side_effects(training, tmp_path: Path) -> None:
    job, events = training(BY_FLAG, AUTO, BY_FLAG, AUTO)
    assert len(reports(events)) == 1
    chosen = reports(events)[0].report.verdict
    measured = PrecisionState(requested="auto", effective=chosen, reason="measured")
    assert states(events) == [BY_FLAG, measured, BY_FLAG, measured]

    for path in tmp_path.iterdir():
        path.unlink()
    keep(tmp_path, chosen)
    unmeasured, events = training(BY_FLAG, AUTO, BY_FLAG, AUTO)
    assert reports(events) == []
    for one, other in zip(job.model.parameters(), unmeasured.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_full_disk_loses_only_the_saved_choice(make_job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    events: list[BaseEvent] = []
    config = FP16TrainingConfig()
    choice = AutoPrecision(make_job(), CPU, config, tmp_path / "file" / "x", Ranks(), events.append)
    assert choice.resolve(AUTO).reason == "measured"
    assert choice.resolve(AUTO).reason == "measured"
    assert [type(event) for event in events] == [Notice, PreflightDone, Notice]


def test_auto_without_a_job_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="train\\(\\) measures it"):
        resolve(FP16TrainingConfig(precision="auto").wish, CPU, cpu_half=True)
    assert FP16TrainingConfig(precision="auto", enabled=False).wish == BY_FLAG
    assert FP16TrainingConfig(precision=Precision.BF16).wish.requested == "bf16"
