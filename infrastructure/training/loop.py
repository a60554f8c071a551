"""Epochs around the step: commands at step boundaries, statistics, checkpoints, evaluation.

In a process group every rank runs these lines. The leader, rank 0, alone hears commands, emits
events, decides and evaluates; what it decides all ranks do after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import Command, PrecisionState, SaveCheckpoint, SetPrecision
from infrastructure.events.event import (
    BaseEvent,
    CheckpointSaved,
    Notice,
    PrecisionChanged,
    Resumed,
    StepStats,
)
from infrastructure.training.checkpoint import CheckpointError
from infrastructure.training.checkpoint_folder import CheckpointFolder
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.distributed import Parallel, spread
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.held_out import evaluate_held_out, first_batch, to_device
from infrastructure.training.precision import Precision, resolve
from infrastructure.training.precision_choice import PrecisionChoice
from infrastructure.training.precision_switch import PinnedPrecisionError
from infrastructure.training.random_state import (
    random_state,
    restore_random_state,
    seed_generators,
)
from infrastructure.training.ranks import Ranks
from infrastructure.training.safety_net import GoBack, SafetyNet
from infrastructure.training.stats_reporter import StatsReporter


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOptions:
    """Attributes:
    seed: Seeds Python's and torch's global generators before the first step.
    stats_interval_steps: Steps between two reads of the device.
    checkpoint_interval_seconds: Longest time between two checkpoints.
    keep_checkpoints: How many are kept.
    parallel: How several ranks share the work; see `spread`.
    """

    seed: int
    stats_interval_steps: int = 20
    checkpoint_interval_seconds: float = 15.0
    keep_checkpoints: int = 2
    parallel: Parallel = "ddp"


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

    On a CPU a resumed training ends bit for bit where an undisturbed one does. In an initialised
    process group every rank calls this with the same job, and the ranks share its batches.

    Args:
        job: See `TrainingJob`; its ``accumulate`` replaces the configuration's.
        device: The model is moved there.
        precision: The wish to begin with; commands change it. ``auto`` measures the job.
        config: See `FP16TrainingConfig`.
        options: See `LoopOptions`.
        folder: For checkpoints; made if it is missing; the same for all ranks.
        emit: Takes events; called from this thread, on rank 0 only.
        commands: Gives the commands that arrived since the last call; must not block. On rank 0
            only.

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
        self._ranks = ranks = Ranks()
        self._checkpoints = CheckpointFolder(folder, options.keep_checkpoints, device, ranks)
        self._emit, self._commands = (emit if ranks.leads else _discard), commands
        seed_generators(options.seed + ranks.rank)
        self._first_batch = first_batch(job, device)
        self._choice = PrecisionChoice(job, device, config, folder, ranks, self._emit)
        self._precision = precision = self._choice.settle(precision)
        wish = resolve(precision, device, cpu_half=config.cpu_half)
        self._spread = spread(job.model, ranks, device, options.parallel, Precision(wish.effective))
        model = self._spread.model
        optimizer = job.optimizer(model.parameters())
        config = replace(config, accumulate=job.accumulate)
        self._trainer = FP16Trainer(model, optimizer, config, wish=precision)
        self._scheduler = job.scheduler(optimizer) if job.scheduler else None
        self._epoch = self._batch = 0
        self._stopped = False
        self._safety_net = SafetyNet(self._trainer, self._checkpoints, self._notice)
        self._unheeded: StepStats | None = None
        self._evaluation: Evaluation | None = None
        self._last_checkpoint = time.monotonic()

    def run(self) -> TrainingResult:
        self._resume()
        interval = self._options.stats_interval_steps
        self._reporter = StatsReporter(self._trainer, self._emit, interval)
        self._set_precision(self._precision)
        while self._epoch < self._job.epochs and not self._stopped:
            self._train_epoch()
        if not self._stopped:
            self._safety_net.demand_progress()
            if self._evaluation is None:  # resumed after the last epoch
                self._evaluate()
        return TrainingResult(
            outcome="stopped" if self._stopped else "done",
            evaluation=self._evaluation,
            steps=self._trainer.training_steps,
            epochs=self._epoch,
        )

    def _train_epoch(self) -> None:
        trainer = self._trainer
        batches = self._job.batches(self._epoch)
        if isinstance(batches, Sized):
            self._ranks.demand_same_length(len(batches))
            per_epoch = -(-len(batches) // (trainer.config.accumulate * self._ranks.count))
            self._reporter.total_steps = per_epoch * self._job.epochs
        trainer.model.train()
        rng = random_state(self._device)
        shares = self._ranks.deal(batches, self._batch)  # resumed inside this epoch: from there
        restore_random_state(rng, self._device)
        for batch, replay, dealt in shares:
            moved = to_device(batch, self._device)
            trainer.step(trainer.training_step(moved, self._job.loss), replay=replay)
            self._batch += dealt
            self._reporter.count_samples(moved, dealt)
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
        self._unheeded = self._reporter.after_step(self._epoch) or self._unheeded
        for order in self._ranks.agree(self._orders):
            if isinstance(order, SetPrecision):
                self._set_precision(order.state)
            elif isinstance(order, SaveCheckpoint):
                self._save_or_notice()
            elif isinstance(order, GoBack):
                self._reporter.report(self._epoch)  # the losses before do not count again
                self._safety_net.go_back(order.losses)
            else:
                self._stop()
            if self._stopped:
                return

    def _orders(self) -> list[Command | GoBack]:
        """What the leader wants done now."""
        orders: list[Command | GoBack] = []
        if self._unheeded is not None:
            orders += self._safety_net.heed(self._unheeded)
            self._unheeded = None
        orders += self._commands()
        if time.monotonic() - self._last_checkpoint >= self._options.checkpoint_interval_seconds:
            orders.append(SaveCheckpoint())
        return orders

    def _stop(self) -> None:
        self._reporter.report(self._epoch)
        self._save()
        self._stopped = True

    def _set_precision(self, wish: PrecisionState) -> None:
        self._reporter.report(self._epoch)  # no window mixes two precisions
        try:
            state = self._trainer.set_precision(self._choice.settle(wish))
        except PinnedPrecisionError as error:
            self._notice("precision_needs_restart", str(error))
            self._stop()
            return
        self._emit(
            PrecisionChanged(
                step=self._trainer.training_steps,
                state=state,
                loss_scale=float(self._trainer.get_stats()["current_scale"]),
            )
        )

    def _evaluate(self) -> None:
        begun = time.monotonic()
        self._spread.collect(self._ranks, self._device)
        if self._ranks.leads:
            self._evaluation, event = evaluate_held_out(
                self._job, self._spread.plain, self._first_batch, self._device, self._epoch
            )
            self._emit(event)
        self._evaluation = self._ranks.same(self._evaluation)
        self._reporter.exclude(time.monotonic() - begun)

    def _save(self) -> None:
        begun = time.monotonic()
        state = {
            "trainer": self._trainer.state_dict(),
            "scheduler": self._scheduler.state_dict() if self._scheduler else None,
            "epoch": self._epoch,
            "batch": self._batch,
            "random": self._ranks.gather(random_state(self._device)),
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
            self._trainer.state.layout("trainer/"),
            lambda error: self._notice("checkpoint_unreadable", str(error)),
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
        rank, steps = self._ranks.rank, self._trainer.training_steps
        if len(state["random"]) == self._ranks.count:
            restore_random_state(state["random"][rank], self._device)
        else:  # another number of ranks: streams that none of them has seen
            seed_generators(self._options.seed + rank + 1_000_003 * steps)

    def _notice(self, event: str, error: str) -> None:
        self._emit(Notice(level="warning", event=event, fields={"error": error}))


def _discard(_event: BaseEvent) -> None:
    """Only the leader has something to say."""
