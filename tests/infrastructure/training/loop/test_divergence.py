from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.event import BaseEvent, StepStats
from infrastructure.training import FP16Trainer
from infrastructure.training.checkpoints import CheckpointFolder
from infrastructure.training.distributed import Ranks
from infrastructure.training.loop.divergence import (
    DivergenceHandler,
    RestoreWeights,
    TrainingDivergedError,
)

FLOOR = 2.0**-16


@pytest.fixture
def events() -> list[BaseEvent]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path, 2, torch.device("cpu"), Ranks())


@pytest.fixture
def handler(
    make_trainer: Callable[..., FP16Trainer],
    checkpoints: CheckpointFolder,
    events: list[BaseEvent],
) -> Callable[..., DivergenceHandler]:
    return lambda **config: DivergenceHandler(make_trainer(**config), checkpoints, events.append)


def stats(**values: object) -> StepStats:
    fields = {"step": 9, "overflow": 1, "fp16": 1, "loss_scale": FLOOR, "precision": "fp16"}
    return StepStats.model_validate(fields | values)


def test_overflow_at_the_floor_falls_back_to_fp32(handler, events) -> None:
    [action] = handler(floor_policy="fallback_fp32").react_to(stats())
    assert isinstance(action, SetPrecision)
    assert (action.state.requested, action.state.effective) == ("fp16", "fp32")
    assert [event.event for event in events] == ["loss_scale_floor"]


def test_the_other_policies_skip_and_halt(handler) -> None:
    assert handler(floor_policy="skip").react_to(stats()) == []
    with pytest.raises(TrainingDivergedError, match="floor"):
        handler(floor_policy="halt").react_to(stats())


@pytest.mark.parametrize(
    "harmless", [{"overflow": 0}, {"loss_scale": 4.0}, {"precision": "fp32", "fp16": 0}]
)
def test_what_is_no_overflow_at_the_floor_of_fp16_changes_nothing(handler, harmless) -> None:
    assert handler(floor_policy="halt").react_to(stats(**harmless)) == []


def test_losses_that_stay_nonfinite_ask_for_the_last_good_weights(handler) -> None:
    patient = handler(nonfinite_loss_patience=3)
    healthy = {"overflow": 0, "loss_scale": 4.0}
    assert patient.react_to(stats(consecutive_nonfinite_losses=2, **healthy)) == []
    [action] = patient.react_to(stats(consecutive_nonfinite_losses=3, **healthy))
    assert action == RestoreWeights(losses=3)


def test_without_a_checkpoint_nothing_is_restored(handler) -> None:
    with pytest.raises(TrainingDivergedError, match="no checkpoint"):
        handler().restore_weights(RestoreWeights(losses=25))


def test_a_step_must_have_changed_the_model(make_trainer, checkpoints, batch, loss_fn) -> None:
    trainer = make_trainer("fp32")
    handler = DivergenceHandler(trainer, checkpoints, list[BaseEvent]().append)
    handler.require_progress()  # no step was attempted
    trainer.step(trainer.training_step(batch, loss_fn) * torch.nan)
    with pytest.raises(TrainingDivergedError, match="none of 1 steps"):
        handler.require_progress()
    trainer.step(trainer.training_step(batch, loss_fn))
    handler.require_progress()


@pytest.mark.parametrize(
    ("precisions", "expected"),
    [(["fp32"], True), (["fp16"], False), (["fp16", "fp32"], False), (["fp32", "fp16"], False)],
)
def test_without_a_checkpoint_only_fp32_alone_makes_a_retry_useless(
    make_trainer, checkpoints, batch, loss_fn, precisions, expected
) -> None:
    trainer = make_trainer(precisions[0])
    handler = DivergenceHandler(trainer, checkpoints, list[BaseEvent]().append)
    for precision in precisions:
        trainer.set_precision(PrecisionState(requested="fp16", effective=precision, reason="guard"))
        handler.note_precision()
        for _ in range(3):
            trainer.step(trainer.training_step(batch, loss_fn))
    with pytest.raises(TrainingDivergedError) as caught:
        handler.restore_weights(RestoreWeights(losses=3))
    assert caught.value.in_fp32 is expected
    assert ("another attempt" in str(caught.value)) is expected
