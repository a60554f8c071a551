"""What takes the steps of a job, of one part or of several."""

from __future__ import annotations

from typing import TypeAlias

from torch.nn import Module

from infrastructure.agent_contract import Job
from infrastructure.events import PrecisionState
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.parts.parts_trainer import PartsTrainer
from infrastructure.training.precision.compiled_calls import CompiledCalls
from infrastructure.training.rounds import kind_of

Trainer: TypeAlias = FP16Trainer | PartsTrainer


def make_trainer(
    job: Job,
    model: Module,
    config: FP16TrainingConfig,
    wish: PrecisionState,
    compiled: CompiledCalls | None = None,
) -> Trainer:
    """The trainer of *job* for *model*, its model or a copy of it; of one part, maybe *compiled*.

    Raises:
        ValueError: Optimizer, parts or targets do not fit the model.
    """
    kind = kind_of(job)
    if kind.parts:
        return PartsTrainer(model, kind.parts, kind.targets, config, wish=wish)
    optimizer = job.optimizer(model.parameters())
    return FP16Trainer(model, optimizer, config, wish=wish, compiled=compiled)


def trainers_of(trainer: Trainer) -> list[FP16Trainer]:
    """The trainers of all parts: *trainer* itself, or those in it."""
    if isinstance(trainer, PartsTrainer):
        return [member.trainer for member in trainer.parts.values()]
    return [trainer]


def updates_done(trainer: Trainer) -> int:
    """Steps attempted so far; of several parts, the batches that each may take a step for."""
    return trainer.batches if isinstance(trainer, PartsTrainer) else trainer.training_steps
