"""Train a job: all at once, or step by step beside others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from infrastructure.agent_contract import Job
from infrastructure.events import Command, PrecisionState
from infrastructure.events.event import BaseEvent
from infrastructure.training.checkpoints import BestEpoch
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.loop.options import LoopOptions, TrainingResult
from infrastructure.training.loop.training_loop import StepRequest, Steps, TrainingLoop
from infrastructure.training.rounds import GeneratedRound

T = TypeVar("T")


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
    best_epoch: BestEpoch | None = None,
) -> TrainingResult:
    """Train ``job.model`` in place; resume from the newest readable checkpoint in *folder*, if any.

    On a CPU a resumed training gives exactly the result of an uninterrupted one. In an initialised
    process group every rank must call this with the same job; the ranks share its batches.

    Args:
        job: Job to train; its ``accumulate`` replaces the one in *config*, and its ``keep_fp32``
            adds to the one there.
        device: Device the model is moved to.
        precision: Initial precision; commands can change it. ``auto`` measures the job and chooses.
        folder: Folder for checkpoints, the same for all ranks; created if it is missing.
        emit: Function that receives the events; called from this thread, on rank 0 only.
        commands: Function that returns the commands that arrived since the last call, without
            blocking; called on rank 0 only.
        observe_round: Function that is told, on rank 0, of each round that an `OnPolicyJob` has
            generated after its warm-up, and of the steps attempted so far. It must not affect the
            training.
        best_epoch: Keeps the weights of the epoch with the best evaluation; those of the warm-up of
            an `OnPolicyJob` do not count. The model is left as the last epoch made it.

    Raises:
        CheckpointError: The newest checkpoint belongs to another job.
        TrainingDivergedError: No step changed the model, or training failed according to
            ``floor_policy`` or ``nonfinite_loss_patience`` of *config*.
        ValueError: The job yields no batches, `FP16Trainer` refuses its model or optimizer, or
            ``keep_fp32`` names a module that the model does not have.
    """
    return take_steps(
        training_steps(
            job,
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
    )


def training_steps(
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
    best_epoch: BestEpoch | None = None,
) -> Steps[TrainingResult]:
    """Do what `train` does, but leave each step to the caller, who may train several jobs in turn.

    Everything happens while the caller advances the generator, also what comes before the first
    step. When it yields a `StepRequest`, the caller must take that step, by `StepRequest.take` or
    in a way that gives the same result, before advancing it again; an error of the step belongs
    into the generator, by ``throw``. While it runs, and in its steps, the global random generators
    must be as this training left them.

    Args and Raises: See `train`.

    Returns:
        A generator whose value is the result.
    """
    loop = TrainingLoop(
        job=job,
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
    return (yield from loop.steps())


def take_steps(steps: Steps[T]) -> T:
    """Take every step that *steps* asks for; return its value.

    Raises:
        BaseException: What *steps* raised; errors of a step pass through it.
    """
    advance: Callable[[], StepRequest] = steps.__next__
    while True:
        try:
            request = advance()
        except StopIteration as end:
            result: T = end.value
            return result
        advance = steps.__next__
        try:
            request.take()
        except BaseException as error:
            advance = partial(steps.throw, error)
