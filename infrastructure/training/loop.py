"""Epochs around the step: commands at step boundaries, statistics, checkpoints, evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Command, PrecisionState, SaveCheckpoint, SetPrecision
from infrastructure.events.event import (
    BaseEvent,
    CheckpointSaved,
    Evaluated,
    Notice,
    PrecisionChanged,
    Resumed,
)
from infrastructure.training.checkpoint import CheckpointError
from infrastructure.training.checkpoint_folder import CheckpointFolder
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.forward import PrecisionForward
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.precision import Precision
from infrastructure.training.random_state import (
    random_state,
    restore_random_state,
    seed_generators,
)
from infrastructure.training.safety_net import SafetyNet
from infrastructure.training.stats_reporter import StatsReporter


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOptions:
    """Attributes:
    seed: Seeds Python's and torch's global generators before the first step.
    stats_interval_steps: Steps between two reads of the device.
    checkpoint_interval_seconds: Longest time between two checkpoints.
    keep_checkpoints: How many are kept.
    """

    seed: int
    stats_interval_steps: int = 20
    checkpoint_interval_seconds: float = 15.0
    keep_checkpoints: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """Attributes:
    outcome: ``done``, or ``stopped`` with a checkpoint written.
    evaluation: Of the last epoch; None if stopped before one ended.
    steps: Optimizer steps attempted over all attempts.
    epochs: Epochs finished.
    """

    outcome: Literal["done", "stopped"]
    evaluation: Evaluation | None
    steps: int
    epochs: int


def train(
    job: TrainingJob,
    *,
    device: torch.device,
    precision: PrecisionState,
    config: FP16TrainingConfig,
    options: LoopOptions,
    folder: Path,
    emit: Callable[[BaseEvent], None],
    commands: Callable[[], Iterable[Command]],
) -> TrainingResult:
    """Train ``job.model`` in place, from the newest readable checkpoint in *folder*, if any.

    On a CPU a resumed training ends bit for bit where an undisturbed one does.

    Args:
        job: See `TrainingJob`; its ``accumulate`` replaces the configuration's.
        device: The model is moved there.
        precision: The wish to begin with; commands change it.
        config: See `FP16TrainingConfig`.
        options: See `LoopOptions`.
        folder: For checkpoints; made if it is missing.
        emit: Takes events; called from this thread.
        commands: Gives the commands that arrived since the last call; must not block.

    Raises:
        CheckpointError: Stopping, and the last checkpoint could not be written.
        TrainingDivergedError: See ``floor_policy`` and ``nonfinite_loss_patience`` of the config.
        ValueError: The job yields no batches, or what `FP16Trainer` refuses.
    """
    return _TrainingLoop(
        job=job,
        device=device,
        precision=precision,
        config=config,
        options=options,
        folder=folder,
        emit=emit,
        commands=commands,
    ).run()


class _TrainingLoop:
    def __init__(
        self,
        *,
        job: TrainingJob,
        device: torch.device,
        precision: PrecisionState,
        config: FP16TrainingConfig,
        options: LoopOptions,
        folder: Path,
        emit: Callable[[BaseEvent], None],
        commands: Callable[[], Iterable[Command]],
    ) -> None:
        self._job, self._device, self._options = job, device, options
        self._checkpoints = CheckpointFolder(folder, options.keep_checkpoints, device)
        self._emit, self._commands = emit, commands
        seed_generators(options.seed)
        self._first_batch = _first_batch(job, device)
        model = job.model.to(device)
        optimizer = job.optimizer(model.parameters())
        self._trainer = FP16Trainer(model, optimizer, replace(config, accumulate=job.accumulate))
        self._scheduler = job.scheduler(optimizer) if job.scheduler else None
        self._precision = precision
        self._epoch = self._batch = 0
        self._stopped = False
        self._safety_net = SafetyNet(
            self._trainer, self._checkpoints, self._notice, self._set_precision
        )
        self._evaluation: Evaluation | None = None
        self._last_checkpoint = time.monotonic()

    def run(self) -> TrainingResult:
        self._resume()
        self._reporter = StatsReporter(
            self._trainer, self._emit, self._options.stats_interval_steps
        )
        self._set_precision(self._precision)
        while self._epoch < self._job.epochs and not self._stopped:
            self._train_epoch()
        if self._evaluation is None and not self._stopped:  # resumed after the last epoch
            self._evaluate()
        return TrainingResult(
            outcome="stopped" if self._stopped else "done",
            evaluation=self._evaluation,
            steps=self._trainer.training_steps,
            epochs=self._epoch,
        )

    def _train_epoch(self) -> None:
        model, trainer = self._trainer.model, self._trainer
        batches = self._job.batches(self._epoch)
        if isinstance(batches, Sized):
            per_epoch = -(-len(batches) // trainer.config.accumulate)
            self._reporter.total_steps = per_epoch * self._job.epochs
        model.train()
        rng = random_state(self._device)
        remaining = iter(batches)
        for _ in range(self._batch):  # resumed inside this epoch
            next(remaining, None)
        restore_random_state(rng, self._device)
        for batch in remaining:
            moved = _to_device(batch, self._device)
            trainer.step(trainer.training_step(moved, self._job.loss))
            self._batch += 1
            self._reporter.count_samples(moved)
            if trainer.at_step_boundary:
                self._after_step()
                if self._stopped:
                    return
        if not trainer.at_step_boundary:
            trainer.finish_window()
            self._after_step()
            if self._stopped:
                return
        self._epoch, self._batch = self._epoch + 1, 0
        self._reporter.report(self._epoch)
        self._evaluate()

    def _after_step(self) -> None:
        if self._scheduler is not None and self._trainer.last_step_attempted:
            self._scheduler.step()
        stats = self._reporter.after_step(self._epoch)
        if stats is not None:
            self._safety_net.heed(stats)
        for command in self._commands():
            if isinstance(command, SetPrecision):
                self._set_precision(command.state)
            elif isinstance(command, SaveCheckpoint):
                self._save_or_notice()
            else:
                self._reporter.report(self._epoch)
                self._save()
                self._stopped = True
                return
        if time.monotonic() - self._last_checkpoint >= self._options.checkpoint_interval_seconds:
            self._save_or_notice()

    def _set_precision(self, wish: PrecisionState) -> None:
        self._reporter.report(self._epoch)  # no window mixes two precisions
        state = self._trainer.set_precision(wish)
        self._emit(
            PrecisionChanged(
                step=self._trainer.training_steps,
                state=state,
                loss_scale=float(self._trainer.get_stats()["current_scale"]),
            )
        )

    def _evaluate(self) -> None:
        """Held-out metrics in FP32, in which a published model is used; and the FP32 baseline."""
        begun = time.monotonic()
        model = self._trainer.model
        forward = PrecisionForward(model, self._device, Precision.FP32)
        model.eval()
        with torch.no_grad():
            with forward.without_autocast():
                self._evaluation = evaluation = self._job.evaluate(forward)
            baseline = forward.compute_loss(self._job.loss, self._first_batch).item()
        self._emit(
            Evaluated(
                epoch=self._epoch,
                metrics=dict(evaluation.metrics),
                primary=evaluation.primary,
                fp32_baseline_loss=baseline,
            )
        )
        self._reporter.exclude(time.monotonic() - begun)

    # -- checkpoints -------------------------------------------------------------------------

    def _save(self) -> None:
        begun = time.monotonic()
        state = {
            "trainer": self._trainer.state_dict(),
            "scheduler": self._scheduler.state_dict() if self._scheduler else None,
            "epoch": self._epoch,
            "batch": self._batch,
            "random": random_state(self._device),
        }
        path, size = self._checkpoints.save(self._trainer.training_steps, state)
        self._last_checkpoint = time.monotonic()
        self._reporter.exclude(self._last_checkpoint - begun)
        self._emit(
            CheckpointSaved(
                step=self._trainer.training_steps,
                path=str(path),
                size_bytes=size,
                seconds=self._last_checkpoint - begun,
            )
        )

    def _save_or_notice(self) -> None:
        """A full disk must not cost the training: say so and try again later.

        Nor may a bad moment replace a good checkpoint.
        """
        if not self._trainer.record.last_loss_was_finite:
            return
        try:
            self._save()
        except CheckpointError as error:
            self._last_checkpoint = time.monotonic()
            self._notice("checkpoint_not_saved", str(error))

    def _resume(self) -> None:
        newest = self._checkpoints.newest(
            lambda error: self._notice("checkpoint_unreadable", str(error))
        )
        if newest is None:
            return
        path, state = newest
        try:
            self._load(state)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                path, f"does not fit this job ({error})", "delete the run's checkpoints"
            ) from error
        self._emit(Resumed(step=self._trainer.training_steps, path=str(path)))

    def _load(self, state: dict[str, Any]) -> None:
        self._trainer.load_state_dict(state["trainer"])
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        self._epoch, self._batch = state["epoch"], state["batch"]
        restore_random_state(state["random"], self._device)

    def _notice(self, event: str, error: str) -> None:
        self._emit(Notice(level="warning", event=event, fields={"error": error}))


def _first_batch(job: TrainingJob, device: torch.device) -> Batch:
    """The batch that the FP32 baseline replays; the same in every attempt."""
    batch = next(iter(job.batches(0)), None)
    if batch is None:
        raise ValueError("the training job yields no batches for epoch 0: nothing to train on")
    return _to_device(batch, device)


def _to_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
