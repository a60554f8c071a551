"""Train a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from infrastructure.agent_contract import Job
from infrastructure.events import Command, PrecisionState
from infrastructure.events.event import BaseEvent
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.loop.env import TrainingEnv
from infrastructure.training.loop.options import LoopOptions, TrainingResult
from infrastructure.training.loop.prepare import prepare
from infrastructure.training.loop.run import run
from infrastructure.training.rounds import GeneratedRound


def train(
    job: Job,
    *,
    device: torch.device,
    precision: PrecisionState,
    config: FP16TrainingConfig,
    options: LoopOptions,
    folder: Path,
    emit: Callable[[BaseEvent], None],
    commands: Callable[[], Iterable[Command]],
    observe_round: Callable[[GeneratedRound, int], None] | None = None,
    best_epoch: Path | None = None,
) -> TrainingResult:
    """Train ``job.model`` in place; resume from the newest readable checkpoint in *folder*, if any.

    `prepare` and `run` in one call. On a CPU a resumed training gives exactly the result of an
    uninterrupted one. In an initialised process group every rank must call this with the same job;
    the ranks share its batches.

    Args:
        job: Job to train.
        device, precision, config, options, folder, emit, commands, observe_round, best_epoch: See
            `TrainingEnv`.

    Raises:
        CheckpointError: The newest checkpoint belongs to another job.
        TrainingDivergedError: No step changed the model, or training failed according to
            ``floor_policy`` or ``nonfinite_loss_patience`` of *config*.
        ValueError: The job yields no batches, `FP16Trainer` refuses its model or optimizer, or
            ``keep_fp32`` names a module that the model does not have.
    """
    env = TrainingEnv(
        device=device,
        precision=precision,
        config=config,
        options=options,
        folder=folder,
        emit=emit,
        commands=commands,
        observe_round=observe_round,
        best_epoch=best_epoch,
    )
    return run(prepare(job, env))
