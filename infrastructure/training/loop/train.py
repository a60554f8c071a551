"""The training loop: epochs of optimizer steps, with an evaluation after each epoch.

In a process group every rank runs this loop. Rank 0 alone receives commands, emits events,
decides and evaluates; all ranks carry out its decisions after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch.nn import Module

from infrastructure.agent_contract import Evaluation, Job, TrainingJob
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Command, PrecisionState
from infrastructure.events.event import BaseEvent, Evaluated, Notice, StepStats
from infrastructure.training.checkpoints import BestEpoch, CheckpointFolder
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.cuda_graphs import GraphedTrainer
from infrastructure.training.diagnostics import Fp32Shadow, RepeatedPasses, StepProfile
from infrastructure.training.distributed import (
    DistributedModel,
    Parallel,
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
from infrastructure.training.loop.lr_schedule import LearningRateSchedule
from infrastructure.training.loop.progress import SavedProgress
from infrastructure.training.loop.statistics import StatsReporter
from infrastructure.training.loop.telemetry import TelemetryObserver
from infrastructure.training.precision import Precision, PrecisionForward, resolve
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


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOptions:
    """Attributes:
    seed: Seed of Python's and torch's global random generators; rank N uses *seed* + N.
    stats_interval_steps: Steps between two reads of the device.
    checkpoint_interval_seconds: Longest time between two checkpoints.
    profile_steps: Number of steps to profile at the beginning; 0 for none. The traces are written
        to ``profile/`` beside the folder of the checkpoints. See `StepProfile`.
    parallel: How several ranks share the model; see `distribute`.
    baseline_interval_steps: Steps between two comparisons of a half precision with FP32; 0 for
        none; see `Fp32Shadow`.
    telemetry_interval_steps: Steps between two measurements of lost updates; 0 for none, and for no
        diagnosis of overflows; see `TelemetryObserver`.
    """

    seed: int
    stats_interval_steps: int = 20
    checkpoint_interval_seconds: float = 15.0
    keep_checkpoints: int = 2
    profile_steps: int = 0
    parallel: Parallel = "ddp"
    baseline_interval_steps: int = 0
    telemetry_interval_steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """Attributes:
    outcome: ``done``, or ``stopped``, with a checkpoint written unless a notice says otherwise.
    evaluation: Evaluation of the last epoch; None if training stopped before an epoch ended.
    steps: Optimizer steps in all attempts of the run, including skipped steps.
    epochs: Number of finished epochs; fewer than the job's if its `patience` ended the training.
    stats: Statistics of the trainer at the end; see `FP16Trainer.get_stats`.
    """

    outcome: Literal["done", "stopped"]
    evaluation: Evaluation | None
    steps: int
    epochs: int
    stats: Mapping[str, float | int | bool | str]


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
        self._best_epoch = best_epoch
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
        self._evaluation: Evaluation | None = None

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
            if self._evaluation is None:  # the run was resumed after its last epoch
                self._evaluate()
        return TrainingResult(
            outcome="stopped" if self._boundary.stopped else "done",
            evaluation=self._evaluation,
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

    def _train_round(self) -> Steps[None]:
        trainer = self.trainer
        progress, boundary = self._progress, self._boundary
        shares = self._begin_round()
        if boundary.stopped:
            return
        for batch, replay, taken in shares:
            moved = to_device(batch, self._device)
            if self._telemetry is not None and not replay:
                self._observe_before_step(self._telemetry, moved)
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

    def _observe_before_step(self, telemetry: TelemetryObserver, batch: Batch) -> None:
        begun = time.monotonic()
        telemetry.before_step(self.trainer, batch)
        self._reporter.exclude(time.monotonic() - begun)

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

    def _evaluate(self) -> None:
        """Evaluate in FP32, because models are published in FP32, and emit the result."""
        begun = time.monotonic()
        self._distributed.update_plain(self._ranks, self._device)
        if self._ranks.is_rank_zero:
            self._evaluation = self._evaluate_plain(self._distributed.plain)
        self._evaluation = self._ranks.broadcast(self._evaluation)
        if self._evaluation is not None and self._trained_beyond_warm_up():
            self._early_stop.note(self._evaluation, self._progress.epoch)
        self._reporter.exclude(time.monotonic() - begun)

    def _evaluate_plain(self, model: Module) -> Evaluation:
        forward = PrecisionForward(model, self._device, Precision.FP32)
        model.eval()
        with torch.no_grad():
            with forward.without_autocast():
                evaluation = self._with_round_metrics(_checked(self._job.evaluate(forward)))
            baseline = forward.compute_loss(self._job.loss, self._first_batch).item()
        self._progress.record_fp32_loss(baseline)
        if self._best_epoch is not None and self._trained_beyond_warm_up():
            self._best_epoch.save_if_better(evaluation, model)
        self._emit(
            Evaluated(
                epoch=self._progress.epoch,
                metrics=evaluation.metrics,
                primary=evaluation.primary,
                higher_is_better=evaluation.higher_is_better,
                fp32_baseline_loss=baseline,
            )
        )
        return evaluation

    def _with_round_metrics(self, evaluation: Evaluation) -> Evaluation:
        job, rounds = self._job, self._rounds
        if not isinstance(job, OnPolicyJob) or not isinstance(rounds, OnPolicyRounds):
            return evaluation
        if job.round_metrics is None or not self._trained_beyond_warm_up():
            return evaluation
        metrics = {**job.round_metrics(rounds.batches), **evaluation.metrics}
        return replace(evaluation, metrics=metrics)

    def _trained_beyond_warm_up(self) -> bool:
        warm_up = self._job.warm_up_rounds if isinstance(self._job, OnPolicyJob) else 0
        return self._progress.epoch * self._rounds.per_epoch > warm_up


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


def _checked(evaluation: object) -> Evaluation:
    """*evaluation* with metrics of its own; the agent may have changed them since it made it.

    Raises:
        TypeError, ValueError: It is not an `Evaluation`, or its primary metric is missing.
    """
    if not isinstance(evaluation, Evaluation):
        raise TypeError(f"evaluate() must return Evaluation, got {type(evaluation).__name__}")
    return replace(evaluation, metrics=dict(evaluation.metrics))
