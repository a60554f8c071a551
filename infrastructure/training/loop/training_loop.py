"""One training from its first step, or its newest checkpoint, to its last evaluation.

In a process group every rank runs this loop. Rank 0 alone receives commands, emits events,
decides and evaluates; all ranks carry out its decisions after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import torch

from infrastructure.agent_contract import Job, TrainingJob
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Command, PrecisionState
from infrastructure.events.event import BaseEvent, Notice, StepStats
from infrastructure.training.checkpoints import BestEpoch, CheckpointFolder
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.cuda_graphs import GraphedTrainer
from infrastructure.training.diagnostics import Fp32Shadow, RepeatedPasses, StepProfile
from infrastructure.training.distributed import (
    DistributedModel,
    RankBatch,
    Ranks,
    distribute,
    is_sharded,
)
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.inputs import (
    random_state,
    restore_random_state,
    seed_generators,
    to_device,
)
from infrastructure.training.loop.auto_precision import AutoPrecision
from infrastructure.training.loop.baseline import BaselineObserver
from infrastructure.training.loop.boundary import StepBoundary, StepObserver
from infrastructure.training.loop.divergence import DivergenceHandler
from infrastructure.training.loop.early_stop import EarlyStop
from infrastructure.training.loop.evaluations import EpochEvaluations
from infrastructure.training.loop.lr_schedule import LearningRateSchedule
from infrastructure.training.loop.options import LoopOptions, TrainingResult
from infrastructure.training.loop.progress import SavedProgress
from infrastructure.training.loop.statistics import StatsReporter
from infrastructure.training.loop.telemetry import TelemetryObserver
from infrastructure.training.precision import Precision, resolve
from infrastructure.training.precision.keep_fp32 import keep_in_fp32, release
from infrastructure.training.precision.roles import Role, RoleResolver
from infrastructure.training.rounds import (
    DatasetRounds,
    GeneratedRound,
    OnPolicyRounds,
    Rounds,
    first_batches,
)

T = TypeVar("T")


class StepRequest(NamedTuple):
    """A batch that a training is to be trained on before it continues.

    Attributes:
        loop: Training that asks.
        batch: Batch on the training's device.
        replay: See `FP16Trainer.step`.
    """

    loop: TrainingLoop
    batch: Batch
    replay: bool

    def take(self) -> None:
        """Train on the batch."""
        self.loop.stepper.train_batch(self.batch, self.loop.loss, replay=self.replay)


Steps: TypeAlias = Generator[StepRequest, None, T]
"""A training, and perhaps what surrounds it, that asks for each of its steps."""


class TrainingLoop:
    """One training from its first step, or its newest checkpoint, to its last evaluation.

    Args: See `train`.

    Attributes:
        trainer: Trainer of the job's model.
        stepper: What takes a step of this training alone: the trainer, or a wrapper of it.
        loss: The job's loss function.
        rounds_begun: Rounds of batches begun so far in this attempt.
        alone_reason: Reason the job or the options keep its steps from being taken together with
            those of other trainings, or None; see `infrastructure.fleet` for those of the model.
    """

    def __init__(
        self,
        *,
        job: Job,
        device: torch.device,
        precision: PrecisionState,
        config: FP16TrainingConfig,
        options: LoopOptions,
        folder: Path,
        emit: Callable[[BaseEvent], None],
        commands: Callable[[], Iterable[Command]],
        observe_round: Callable[[GeneratedRound, int], None] | None,
        best_epoch: BestEpoch | None,
    ) -> None:
        job = replace(job, keep_fp32=(*job.keep_fp32, *config.keep_fp32))
        self._job, self._device, self._observe_round = job, device, observe_round
        self._ranks = ranks = Ranks()
        if job.keep_fp32 and options.parallel == "fsdp2-policy" and ranks.count > 1:
            raise ValueError(
                f"keep_fp32={list(job.keep_fp32)} has no effect with parallel='fsdp2-policy', "
                "which gathers all parameters in half precision: use parallel='fsdp2'"
            )
        keep_in_fp32(job.model, job.keep_fp32, device)  # its copies inherit that
        self._emit = emit = emit if ranks.is_rank_zero else lambda _event: None
        checkpoints = CheckpointFolder(folder, options.keep_checkpoints, device, ranks)
        seed_generators(options.seed + ranks.rank)
        (self._first_batch,) = first_batches(job, device)
        auto_precision = AutoPrecision(job, device, config, folder, ranks, emit)
        roles = _resolver_of(job, device, config.cpu_half, emit)
        precision = roles.resolve(auto_precision.resolve(precision))
        effective = resolve(precision, device, cpu_half=config.cpu_half).effective
        compute = Precision(effective).compute
        self._distributed = distribute(job.model, ranks, device, options.parallel, compute)
        model = self._distributed.model
        optimizer = job.optimizer(model.parameters())
        config = replace(config, accumulate=job.accumulate, keep_fp32=job.keep_fp32)
        self.trainer = trainer = FP16Trainer(model, optimizer, config, wish=precision)
        self.stepper = GraphedTrainer(trainer) if config.cuda_graph else trainer
        self.loss = job.loss
        self.alone_reason = _alone_reason(job, options)
        self.rounds_begun = 0
        schedule = None
        if job.scheduler is not None:
            schedule = LearningRateSchedule(
                job.scheduler(optimizer), self.trainer, job.scheduler_counts
            )
        self._rounds = _rounds_of(job, self._distributed, ranks, device)
        self._early_stop = EarlyStop(job.patience)
        self._progress = SavedProgress(
            trainer=self.trainer,
            schedule=schedule,
            early_stop=self._early_stop,
            rounds=self._rounds,
            checkpoints=checkpoints,
            ranks=ranks,
            seed=options.seed,
            emit=emit,
        )
        self._progress.resume()
        self._evaluations = EpochEvaluations(
            job=job,
            model=self._distributed,
            ranks=ranks,
            device=device,
            rounds=self._rounds,
            first_batch=self._first_batch,
            progress=self._progress,
            early_stop=self._early_stop,
            best_epoch=best_epoch,
            emit=emit,
        )
        self._telemetry: TelemetryObserver | None = None
        self._reporter = StatsReporter(
            self.trainer, self._report_steps, options.stats_interval_steps
        )
        self._divergence = DivergenceHandler(self.trainer, checkpoints, emit)
        self._profile = StepProfile(
            options.profile_steps, folder.parent / "profile", emit, self.stepper
        )
        self._boundary = StepBoundary(
            trainer=self.trainer,
            schedule=schedule,
            reporter=self._reporter,
            progress=self._progress,
            divergence=self._divergence,
            rounds=self._rounds,
            auto_precision=auto_precision,
            roles=roles,
            observers=self._observers(options),
            ranks=ranks,
            checkpoint_interval_seconds=options.checkpoint_interval_seconds,
            emit=emit,
            commands=commands,
        )
        self._boundary.set_precision(precision)

    def _observers(self, options: LoopOptions) -> list[StepObserver]:
        observers: list[StepObserver] = []
        if not self._ranks.is_rank_zero:
            return observers
        plain, loss, emit = self._distributed.plain, self._job.loss, self._emit
        intervals = {
            "baseline_not_measured": options.baseline_interval_steps,
            "telemetry_not_measured": options.telemetry_interval_steps,
        }
        for notice, interval in intervals.items():
            if interval and is_sharded(self.trainer.model):
                fields = {"error": "the model is sharded, so no rank holds all of it"}
                emit(Notice(event=notice, fields=fields))
            elif interval and notice == "baseline_not_measured":
                shadow = Fp32Shadow(plain, loss, self._first_batch, self._device)
                observers.append(BaselineObserver(shadow, interval, emit, self._progress))
            elif interval:
                passes = RepeatedPasses(plain, loss, self._device)
                self._telemetry = TelemetryObserver(passes, interval, emit)
                observers.append(self._telemetry)
        if options.profile_steps:
            observers.append(self._profile)
        return observers

    def steps(self) -> Steps[TrainingResult]:
        """Train; see `training_steps`."""
        try:
            while self._has_epochs_left() and not self._boundary.stopped:
                yield from self._train_epoch()
        finally:
            self._profile.finish()  # training may end before all profile_steps are done
            release(self._job.model)  # for its author, who may save or export it whole
        if not self._boundary.stopped:
            self._divergence.require_progress()
            if self._evaluations.last is None:  # the run was resumed after its last epoch
                self._evaluate()
        return TrainingResult(
            outcome="stopped" if self._boundary.stopped else "done",
            evaluation=self._evaluations.last,
            steps=self.trainer.training_steps,
            epochs=self._progress.epoch,
            stats=self.trainer.get_stats(),
        )

    def _has_epochs_left(self) -> bool:
        epoch, epochs = self._progress.epoch, self._job.epochs
        reason = self._early_stop.reason
        if reason and epoch < epochs:
            if not self.trainer.record.last_loss_was_finite:
                return True  # its steps are skipped: restoring weights, or failing, comes first
            fields = {"reason": reason, "epoch": str(epoch), "epochs": str(epochs)}
            self._emit(Notice(event="training_stopped_early", fields=fields))
        return epoch < epochs and not reason

    @property
    def remaining_steps(self) -> int | None:
        """Optimizer steps that are still to be attempted, at most; None while unknown."""
        total = self._reporter.total_steps
        return None if total is None else total - self.trainer.training_steps

    def _train_epoch(self) -> Steps[None]:
        progress, boundary = self._progress, self._boundary
        while progress.round < self._rounds.per_epoch:
            yield from self._train_round()
            if boundary.stopped:
                return
            progress.round, progress.batch = progress.round + 1, 0
        progress.epoch, progress.round = progress.epoch + 1, 0
        boundary.end_epoch()
        self._evaluate()

    def _evaluate(self) -> None:
        begun = time.monotonic()
        self._evaluations.evaluate()
        self._reporter.exclude(time.monotonic() - begun)

    def _train_round(self) -> Steps[None]:
        trainer = self.trainer
        progress, boundary, telemetry = self._progress, self._boundary, self._telemetry
        shares = self._begin_round()
        if boundary.stopped:
            return
        for batch, replay, taken in shares:
            moved = to_device(batch, self._device)
            if telemetry is not None and not replay:
                before = telemetry.seconds
                telemetry.before_step(trainer, moved)
                if telemetry.seconds > before:
                    self._reporter.exclude(telemetry.seconds - before)
            yield StepRequest(self, moved, replay)
            progress.batch += taken
            self._reporter.count_samples(moved, taken)
            if trainer.at_step_boundary:
                boundary.after_step()
                if boundary.stopped:
                    return
        if not trainer.at_step_boundary:
            trainer.finish_window()
            boundary.after_step()

    def _report_steps(self, event: BaseEvent) -> None:
        self._emit(event)
        if self._telemetry is not None and isinstance(event, StepStats):
            self._telemetry.count(event)

    def _begin_round(self) -> Iterator[RankBatch]:
        """Return this rank's share of the batches that remain in the round."""
        trainer, progress = self.trainer, self._progress
        self.rounds_begun += 1
        round_ = progress.epoch * self._rounds.per_epoch + progress.round
        begun = time.monotonic()
        batches = self._rounds.begin(round_)
        if isinstance(self._rounds, OnPolicyRounds):
            if self._rounds.generated is not None and self._observe_round is not None:
                self._observe_round(self._rounds.generated, trainer.training_steps)
            self._reporter.exclude(time.monotonic() - begun)
            self._boundary.execute_commands()  # they may have waited for as long
        if isinstance(batches, Sized):
            self._ranks.require_equal_length(len(batches))
            self._reporter.total_steps = self._expected_steps(round_, len(batches))
        trainer.model.train()
        rng = random_state(self._device)
        shares = self._ranks.shard_batches(batches, progress.batch)
        restore_random_state(rng, self._device)
        return shares

    def _expected_steps(self, round_: int, batches: int) -> int:
        """Steps of the run if all rounds from *round_* on have as many *batches*."""
        micro_batches = self.trainer.config.accumulate * self._ranks.count
        per_round = -(-batches // micro_batches)
        if isinstance(self._job, TrainingJob):
            return per_round * self._job.epochs
        before = self.trainer.training_steps - self._progress.batch // micro_batches
        return before + per_round * (self._job.epochs * self._rounds.per_epoch - round_)


def _alone_reason(job: Job, options: LoopOptions) -> str | None:
    if isinstance(job, OnPolicyJob):
        return "it generates its batches with its own model"
    if options.profile_steps:
        return "its steps are profiled"
    return None


def _resolver_of(
    job: Job, device: torch.device, cpu_half: bool, emit: Callable[[BaseEvent], None]
) -> RoleResolver:
    roles: list[Role] = []
    preset = None
    if isinstance(job, OnPolicyJob):
        roles = [Role.POLICY, Role.ROLLOUT]
        roles += [Role.REFERENCE] if job.reference else []
        roles += [Role.VALUE] if job.value is not None else []
        preset = job.role_precision
    return RoleResolver(roles, preset=preset, device=device, cpu_half=cpu_half, emit=emit)


def _rounds_of(job: Job, model: DistributedModel, ranks: Ranks, device: torch.device) -> Rounds:
    if isinstance(job, OnPolicyJob):
        return OnPolicyRounds(job, model, ranks, device)
    if isinstance(job, TrainingJob):
        return DatasetRounds(job)
    raise TypeError(f"train() takes a TrainingJob or an OnPolicyJob, got {type(job).__name__}")
