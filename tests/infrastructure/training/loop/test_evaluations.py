from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import PrecisionState
from infrastructure.events.event import BaseEvent, Evaluated, Notice
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, TrainingResult, train

FP32 = PrecisionState(requested="fp32", effective="fp32", reason="default")


class Recorded:
    """Gives a job these selection losses, one an epoch, and keeps the weights evaluated."""

    def __init__(self, job: TrainingJob, losses: Iterable[float], *, keep: bool) -> None:
        self._losses, self._model = iter(losses), job.model
        self.weights: list[torch.Tensor] = []
        self.job = replace(job, evaluate=self._evaluate, keep_best_epoch=keep)

    def _evaluate(self, _forward: object) -> Evaluation:
        self.weights.append(self.weights_now())
        epoch = float(len(self.weights))
        return Evaluation(
            metrics={"epoch": epoch},
            primary="epoch",
            higher_is_better=True,
            selection_loss=next(self._losses),
        )

    def weights_now(self) -> torch.Tensor:
        return torch.cat([each.detach().flatten().clone() for each in self._model.parameters()])


def run(
    job: TrainingJob,
    folder: Path,
    emit: Callable[[BaseEvent], None] = lambda _event: None,
    best_epoch: Path | None = None,
) -> TrainingResult:
    return train(
        job,
        device=torch.device("cpu"),
        precision=FP32,
        config=FP16TrainingConfig(),
        options=LoopOptions(seed=3),
        folder=folder / "checkpoints",
        emit=emit,
        commands=tuple,
        best_epoch=best_epoch or folder / "best.pt",
    )


@pytest.mark.parametrize(("keep", "left"), [(True, 2), (False, 4)])
def test_a_recorded_job_decides_which_epoch_the_model_is_left_with(
    make_job, tmp_path: Path, keep: bool, left: int
):
    recorded = Recorded(make_job(epochs=4), [0.5, 0.25, float("nan"), 1.0], keep=keep)
    result = run(recorded.job, tmp_path)
    assert result.evaluation.metrics == {"epoch": float(left)}
    assert torch.equal(recorded.weights_now(), recorded.weights[left - 1])
    assert (tmp_path / "best.pt").exists() is keep


def test_a_best_epoch_damaged_at_the_end_leaves_the_last_one(make_job, tmp_path: Path):
    recorded, notices = Recorded(make_job(epochs=2), [0.5, 1.0], keep=True), []

    def damage(event: BaseEvent) -> None:
        if isinstance(event, Evaluated) and event.epoch == 2:
            (tmp_path / "best.pt").write_bytes(b"torn")
        if isinstance(event, Notice):
            notices.append(event)

    result = run(recorded.job, tmp_path, damage)
    assert result.evaluation.metrics == {"epoch": 2.0}
    assert torch.equal(recorded.weights_now(), recorded.weights[-1])
    (notice,) = [each for each in notices if each.event == "best_epoch_damaged"]
    assert str(tmp_path / "best.pt") in notice.fields["error"]


@pytest.mark.parametrize(
    ("losses", "refused", "left", "told"),
    [
        ([0.5, 0.4, 0.3, 0.6], {1, 2}, 3, ["best_epoch_not_saved"]),
        ([0.5, 0.4, 0.3, 0.6], {1, 2, 3}, 4, ["best_epoch_not_saved"]),
        ([0.5, 0.9, 0.4, 0.6], {3}, 1, ["best_epoch_not_saved"]),
        ([0.5, 0.9, 0.4, 0.3], {3, 4}, 4, ["best_epoch_not_saved", "last_weights_used"]),
        ([0.5, 0.4], {1, 2}, 2, ["best_epoch_not_saved", "last_weights_used"]),
    ],
)
def test_a_disk_that_refuses_the_best_epoch_costs_no_training(
    make_job, tmp_path: Path, losses: list[float], refused: set[int], left: int, told: list[str]
):
    """The folder of the weights cannot be written after the epochs *refused*."""
    folder, away, notices = tmp_path / "kept", tmp_path / "away", []
    folder.mkdir()

    def losses_and_disk() -> Iterator[float]:
        for epoch, loss in enumerate(losses, start=1):
            if folder.is_file():
                folder.unlink()
                away.rename(folder)
            if epoch in refused:
                folder.rename(away)
                folder.touch()
            yield loss

    def emit(event: BaseEvent) -> None:
        if isinstance(event, Notice):
            notices.append(event)

    job = make_job(epochs=len(losses))
    recorded = Recorded(job, losses_and_disk(), keep=True)
    result = run(recorded.job, tmp_path, emit, best_epoch=folder / "best.pt")
    assert (result.outcome, result.evaluation.metrics) == ("done", {"epoch": float(left)})
    assert torch.equal(recorded.weights_now(), recorded.weights[left - 1])
    assert [notice.event for notice in notices] == told
    assert notices[0].fields["path"] == str(folder / "best.pt")
    assert all("Not a directory" in notice.fields["error"] for notice in notices)
