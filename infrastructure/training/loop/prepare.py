"""Prepares a training: everything that comes before its first step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract import Forward, Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import BaseEvent, Notice, StepStats
from infrastructure.training.checkpoints import BestEpoch, BestEpochError, CheckpointFolder
from infrastructure.training.cuda_graphs import GraphedTrainer
from infrastructure.training.diagnostics import Fp32Shadow, RepeatedPasses, StepProfile
from infrastructure.training.distributed import (
    DistributedModel,
    Parallel,
    Ranks,
    distribute,
    is_sharded,
)
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.inputs import seed_generators
from infrastructure.training.loop.baseline import BaselineObserver
from infrastructure.training.loop.divergence import DivergenceHandler
from infrastructure.training.loop.early_stop import EarlyStop
from infrastructure.training.loop.env import TrainingEnv
from infrastructure.training.loop.evaluations import EpochEvaluations
from infrastructure.training.loop.lr_schedule import LearningRateSchedule
from infrastructure.training.loop.precision_decision import DecidedPrecision, PrecisionDecision
from infrastructure.training.loop.progress import SavedProgress
from infrastructure.training.loop.statistics import StatsReporter
from infrastructure.training.loop.telemetry import TelemetryObserver
from infrastructure.training.loop.training import StepObserver, Stepper, Training
from infrastructure.training.parts import PartsTrainer, Trainer, make_trainer, trainers_of
from infrastructure.training.precision import Precision
from infrastructure.training.precision.compiled_calls import CompiledCalls
from infrastructure.training.precision.frozen_base import FrozenBase
from infrastructure.training.precision.heads import output_head
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.precision.roles import find_preset
from infrastructure.training.rounds import JobKind, first_batches, kind_of


def prepare(job: Job, env: TrainingEnv) -> Training:
    """Prepare to train *job*, from the newest readable checkpoint in ``env.folder``, if any.

    The model is moved to its device, and ``auto`` is measured; no step is taken.

    Raises: See `train`.
    """
    ranks, device, options = Ranks(), env.device, env.options
    if not ranks.is_rank_zero:
        env = replace(env, emit=lambda _event: None, batch_observer=None)
    job = _with_kept_modules(job, env, ranks)
    kind = kind_of(job)
    if kind.parts:
        _check_parts_can_run(kind, env, ranks)
    checkpoints = CheckpointFolder(env.folder, options.keep_checkpoints, device, ranks)
    seed_generators(options.seed + ranks.rank)
    (first_batch,) = first_batches(job, device)
    precision = PrecisionDecision(job, env, ranks)
    first = precision.decide(env.precision)
    compute = Precision(first.state.effective).compute
    model = distribute(job.model, ranks, device, _parallel(env, first, ranks), compute)
    config = replace(env.config, accumulate=job.accumulate, keep_fp32=job.keep_fp32)
    compiles = kind.compiles and not kind.parts
    compiled = CompiledCalls(on_refused=_tell_refused(env)) if compiles else None
    trainer = make_trainer(job, model.model, config, first.state, compiled)
    stepper: Stepper = trainer
    schedule = None
    if isinstance(trainer, FP16Trainer):
        stepper = GraphedTrainer(trainer) if config.cuda_graph else trainer
        if job.scheduler is not None:
            scheduler = job.scheduler(trainer.optimizer)
            schedule = LearningRateSchedule(scheduler, trainer, job.scheduler_counts)
    rounds, early_stop = kind.begin_rounds(model, ranks, device), EarlyStop(job.patience)
    progress = SavedProgress(
        trainer=trainer,
        schedule=schedule,
        early_stop=early_stop,
        rounds=rounds,
        checkpoints=checkpoints,
        ranks=ranks,
        seed=options.seed,
        emit=env.emit,
    )
    progress.resume()
    evaluations = EpochEvaluations(
        job=job,
        model=model,
        ranks=ranks,
        device=device,
        rounds=rounds,
        first_batch=first_batch,
        progress=progress,
        early_stop=early_stop,
        best_epoch=_best_epoch(kind, env, model.plain),
        emit=env.emit,
    )
    profile_folder = env.folder.parent / "profile"
    profile = StepProfile(
        options.profile_steps, profile_folder, env.emit, stepper, trainers_of(trainer)
    )
    observers: Sequence[StepObserver] = []
    telemetry = None
    if ranks.is_rank_zero:
        observers, telemetry = _observers(job, env, model, first_batch, progress, trainer)
    if options.profile_steps and ranks.is_rank_zero:
        observers = [*observers, profile]
    if env.batch_observer is not None:
        observers = [*observers, env.batch_observer]

    def report(event: BaseEvent) -> None:
        env.emit(event)
        if telemetry is not None and isinstance(event, StepStats):
            telemetry.count(event)

    return Training(
        job=job,
        kind=kind,
        env=env,
        ranks=ranks,
        trainer=trainer,
        stepper=stepper,
        first=first,
        precision=precision,
        schedule=schedule,
        rounds=rounds,
        progress=progress,
        early_stop=early_stop,
        evaluations=evaluations,
        reporter=StatsReporter(trainer, report, options.stats_interval_steps),
        divergence=DivergenceHandler(trainer, checkpoints, env.emit),
        telemetry=telemetry,
        profile=profile,
        observers=observers,
    )


def _parallel(env: TrainingEnv, first: DecidedPrecision, ranks: Ranks) -> Parallel:
    """How the ranks share the model: without a policy while modules are raised to FP32."""
    parallel = env.options.parallel
    if parallel != "fsdp2-policy" or ranks.count == 1 or not first.state.modules:
        return parallel
    why = f"a MixedPrecisionPolicy cannot leave out {', '.join(first.state.modules)}"
    consequence = "this attempt shards by fsdp2, in the precision of autocast"
    env.emit(Notice.warning("policy_not_used", why, consequence=consequence))
    return "fsdp2"


def _check_parts_can_run(kind: JobKind, env: TrainingEnv, ranks: Ranks) -> None:
    """Raise, or tell, what a job with parts cannot do."""
    if ranks.count > 1:
        raise ValueError(
            f"a job with parts trains in one process, and here are {ranks.count}: set "
            "GENESIS_PROCESSES_PER_RUN=1 for its agent"
        )
    refused = {"cuda_graph_refused": env.config.cuda_graph, "compile_refused": kind.compiles}
    for event in (name for name, is_wanted in refused.items() if is_wanted):
        env.emit(Notice.warning(event, "the job has parts: its steps are eager"))


def _with_kept_modules(job: Job, env: TrainingEnv, ranks: Ranks) -> Job:
    """*job* with the modules to keep in FP32 of both; from now on they compute in it.

    With them the head, if the job's preset has it in FP32: rollout and reference are copies of the
    model, so that the head is in FP32 on all sides.
    """
    preset = kind_of(job).role_preset
    head = preset is not None and bool(find_preset(preset).fp32_head)
    heads = (output_head(job.model),) if head else ()
    job = replace(job, keep_fp32=(*job.keep_fp32, *env.config.keep_fp32, *heads))
    if job.keep_fp32 and env.options.parallel == "fsdp2-policy" and ranks.count > 1:
        raise ValueError(
            f"keep_fp32={list(job.keep_fp32)} has no effect with parallel='fsdp2-policy', "
            "which gathers all parameters in half precision: use parallel='fsdp2'"
        )
    keep_in_fp32(job.model, job.kept_modules, env.device)  # its copies inherit that
    return job


def _tell_refused(env: TrainingEnv) -> Callable[[str], None]:
    def tell(reason: str) -> None:
        env.emit(Notice.warning("compile_refused", reason, consequence="steps are eager"))

    return tell


def _best_epoch(kind: JobKind, env: TrainingEnv, network: Module) -> BestEpoch | None:
    if env.best_epoch is None or not kind.keeps_best_epoch:
        return None

    def warn(error: BestEpochError) -> None:
        consequence = "the best epoch is chosen among those trained from now on"
        env.emit(Notice.warning("best_epoch_damaged", error, consequence=consequence))

    return BestEpoch(env.best_epoch, warn, FrozenBase(network))


def _observers(
    job: Job,
    env: TrainingEnv,
    model: DistributedModel,
    first_batch: Batch,
    progress: SavedProgress,
    trainer: Trainer,
) -> tuple[Sequence[StepObserver], TelemetryObserver | None]:
    """The observers that the options ask for, and the one of lost updates."""
    observers: list[StepObserver] = []
    telemetry, options, device, emit = None, env.options, env.device, env.emit

    def loss(forward: Forward, batch: Batch) -> Tensor:  # of parts, each in its own precision
        of_job = trainer.joint_loss if isinstance(trainer, PartsTrainer) else job.loss
        return of_job(forward, batch)

    intervals = {
        "baseline_not_measured": options.baseline_interval_steps,
        "telemetry_not_measured": options.telemetry_interval_steps,
    }
    for notice, interval in intervals.items():
        if interval and is_sharded(model.model):
            fields = {"error": "the model is sharded, so no rank holds all of it"}
            emit(Notice(event=notice, fields=fields))
        elif interval and kind_of(job).parts and notice == "telemetry_not_measured":
            fields = {"error": "the job has parts, and a gradient is that of one loss only"}
            emit(Notice(event=notice, fields=fields))
        elif interval and notice == "baseline_not_measured":
            shadow = Fp32Shadow(model.plain, loss, first_batch, device)
            observers.append(BaselineObserver(shadow, interval, emit, progress))
        elif interval:
            passes = RepeatedPasses(model.plain, job.loss, device)
            telemetry = TelemetryObserver(passes, interval, emit)
            observers.append(telemetry)
    return observers, telemetry
