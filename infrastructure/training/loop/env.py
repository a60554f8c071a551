"""What a job is trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Command, PrecisionState
from infrastructure.events.event import BaseEvent
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.loop.options import LoopOptions
from infrastructure.training.parts import Trainer
from infrastructure.training.rounds import GeneratedRound


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEnv:
    """What a job is trained with.

    Attributes:
        device: Device the model is moved to.
        precision: Initial precision; commands can change it. ``auto`` measures the job and chooses.
        config: Configuration of the trainer; the job's ``accumulate`` replaces the one here, and
            its ``keep_fp32`` adds to the one here.
        options: Options of the loop.
        folder: Folder for checkpoints, the same for all ranks; created if it is missing.
        emit: Function that receives the events; called from this thread, on rank 0 only.
        commands: Function that returns the commands that arrived since the last call, without
            blocking; called on rank 0 only.
        observe_round: Function that is told, on rank 0, of each round that the job has generated
            after its warm-up, and of the steps attempted so far. It must not affect the training.
        batch_observer: Observer on rank 0 that sees every batch, too; None for none.
        best_epoch: File for the weights of the best epoch, if the job keeps them; at the end the
            model has these weights. None leaves the model as the last epoch made it.
    """

    device: torch.device
    precision: PrecisionState
    config: FP16TrainingConfig
    options: LoopOptions
    folder: Path
    emit: Callable[[BaseEvent], None]
    commands: Callable[[], Iterable[Command]]
    observe_round: Callable[[GeneratedRound, int], None] | None = None
    batch_observer: BatchObserver | None = None
    best_epoch: Path | None = None


class BatchObserver(Protocol):
    """Observes every step of a training and its batch, without changing them.

    Attributes:
        interval_steps: See `StepObserver`.
    """

    interval_steps: int

    def keep(self, batch: Batch) -> None:
        """See *batch* before its step, as the job has made it."""

    def observe(self, trainer: Trainer) -> None:
        """See `StepObserver`."""
