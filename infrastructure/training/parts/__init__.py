"""Several trainers over one model, one for each part of a job."""

from typing import TypeAlias

from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.parts.parts_trainer import PartsTrainer

Trainer: TypeAlias = FP16Trainer | PartsTrainer
"""What takes the steps of a job: of one part, or of several."""


def trainers_of(trainer: Trainer) -> list[FP16Trainer]:
    """The trainers of all parts: *trainer* itself, or those in it."""
    if isinstance(trainer, PartsTrainer):
        return [member.trainer for member in trainer.parts.values()]
    return [trainer]


__all__ = ["PartsTrainer", "Trainer", "trainers_of"]
