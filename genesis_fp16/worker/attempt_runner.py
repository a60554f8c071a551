"""What a worker does: collect, train, publish; as one of several ranks together with the others."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.run import Outcome
from genesis_fp16.domain.run_spec import LabRequest, ProfileRequest, RunSpec
from genesis_fp16.plugins.agent_folder import write_preflight
from genesis_fp16.plugins.loading import load_agent, validate_settings
from genesis_fp16.worker.channel import (
    CommandInbox,
    Emit,
    PacedEvents,
    ProgressReporter,
    run_logger,
)
from genesis_fp16.worker.collection import Collection, check_type, repeated_snapshot
from genesis_fp16.worker.config import loop_options, trainer_config
from genesis_fp16.worker.published_versions import PublishedVersions
from infrastructure.agent_contract import (
    Agent,
    EvaluationReport,
    Job,
    Publication,
    RunContext,
)
from infrastructure.agent_contract.agent import InsufficientDataError, RecordedTransitions
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import (
    BaseEvent,
    Phase,
    PhaseStarted,
    PreflightDone,
    ProfileDone,
    Published,
    Started,
)
from infrastructure.files import remove_abandoned
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.checkpoints import BestEpoch
from infrastructure.training.diagnostics import check_fp32_step
from infrastructure.training.diagnostics.preflight import preflight
from infrastructure.training.distributed import Ranks, process_group
from infrastructure.training.loop import TrainingEnv, TrainingResult, prepare, run
from infrastructure.training.precision import resolve_device
from infrastructure.training.rounds import GeneratedRound, kind_of
from infrastructure.trajectories import BufferSnapshot

T = TypeVar("T")


class WrongDeviceError(GenesisError, ValueError):
    """The device does not exist, or there is not one for each rank."""

    exit_code = os.EX_CONFIG


class StoppedError(Exception):
    """The daemon asked the run to stop while nothing was training."""


class AttemptRunner:
    """Runs one attempt, from collecting to publishing.

    Attributes:
        activity: What is under way, in words that follow "failed while".
    """

    def __init__(self, spec: RunSpec, emit: Emit, inbox: CommandInbox) -> None:
        self._spec, self._emit, self._inbox = spec, emit, inbox
        self._precision = spec.precision
        self._progress = ProgressReporter(emit)
        self._logger = run_logger(emit, spec.agent, spec.run_id)
        self._group = ExitStack()
        self.activity = "loading the agent"

    def start(self) -> None:
        """Load the agent, join the other ranks, and report that the worker has started."""
        self._load()
        self._group.enter_context(self._process_group())

    def run(self) -> Outcome:
        """Run every phase after `start`; an exception means that the attempt is not complete."""
        with self._group:
            if self._spec.task == "preflight":
                self._measure()
                return "done"
            if self._spec.profile is not None:
                self._profile(self._spec.profile)
                return "done"
            if self._spec.lab is not None:
                self._run_lab(self._spec.lab)
                return "done"
            transitions = self._transitions(self._spec.agent_folder / "replay")
            try:
                job = self._build_job(transitions)
            except InsufficientDataError as error:
                self._emit(Published(published=False, reason=str(error)))
                return "done"
            self.activity = "checking the training job"
            check_fp32_step(job, self._device)
            result, best = self._train(job)
        if result.outcome == "stopped":
            return "stopped"
        if self._ranks.is_rank_zero and self._spec.repeats is None:
            self._publish(job, result, best)
        return "done"

    def _load(self) -> None:
        spec = self._spec
        if spec.threads:
            torch.set_num_threads(spec.threads)
        self._agent: Agent = load_agent(spec.entry_point, spec.agent, definition=spec.definition)
        self._settings = validate_settings(self._agent, spec.settings)
        for folder in (spec.agent_folder, spec.run_folder):
            folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _process_group(self) -> Iterator[None]:
        """Join the other ranks, if there are any, and report that the worker has started."""
        spec = self._spec
        try:
            joining = _join(resolve_device(spec.device), spec.processes_per_run)
        except ValueError as error:
            raise WrongDeviceError(str(error)) from error
        self.activity = "joining the other ranks"
        with joining as self._device:
            self._ranks = Ranks()
            if self._ranks.is_rank_zero:
                remove_abandoned(spec.run_folder, older_seconds=0.0)
                remove_abandoned(spec.agent_folder)
            self._context = RunContext(
                run_id=spec.run_id,
                attempt=spec.attempt,
                agent=spec.agent,
                device=str(self._device),
                seed=spec.seed,
                agent_folder=spec.agent_folder,
                run_folder=spec.run_folder,
                budget=Budget(seconds=spec.budget_seconds, transitions=spec.budget_transitions),
                settings=self._settings,
                logger=self._logger,
                report_progress=self._progress,
                repeats=spec.repeats,
            )
            device, version = str(self._device), torch.__version__
            self._emit(Started(pid=os.getpid(), device=device, torch_version=version))
            self._collection = Collection(
                self._agent,
                self._context,
                self._progress,
                begin=lambda: self._begin("collect", "collecting"),
                poll=self._read_commands,
            )
            yield

    def _begin(self, phase: Phase, activity: str) -> None:
        self.activity = activity
        self._progress.begin(phase)
        self._emit(PhaseStarted(phase=phase))

    def _read_commands(self) -> PrecisionState:
        """Obey commands while nothing trains; return the precision to start training with.

        Raises:
            StoppedError: One of the commands was to stop.
        """
        for command in self._inbox.drain():
            if isinstance(command, Stop):
                raise StoppedError(command.reason)
            if isinstance(command, SetPrecision):
                self._precision = command.state
        return self._precision

    def _transitions(self, folder: Path) -> RecordedTransitions:
        self.activity = "reading the run's data"
        repeated = self._spec.repeats
        snapshot = broadcast_from_leader(
            self._ranks,
            lambda: (
                self._collection.snapshot(folder)
                if repeated is None
                else repeated_snapshot(repeated)
            ),
        )
        return self._collection.read(folder, snapshot)

    def _build_job(self, transitions: RecordedTransitions) -> Job:
        broadcast_from_leader(self._ranks, self._read_commands)
        self.activity = "building the training job"
        _seed_everything(self._spec.seed)
        job = self._agent.build_job(self._context, transitions)
        if not isinstance(job, Job):
            got = type(job).__name__
            raise TypeError(f"build_job() must return TrainingJob or OnPolicyJob, got {got}")
        return replace(job, keep_fp32=(*job.keep_fp32, *self._spec.keep_fp32))

    def _measure(self) -> None:
        """Run the pre-flight measurement on the job that a run would train now.

        If the agent's replay buffer holds too little, more is collected into a temporary one.
        """
        job, _, _ = self._job_of_now()
        self.activity = "measuring the training job"
        check_fp32_step(job, self._device)
        report = preflight(job, self._device, self._config())
        self._emit_and_save(PreflightDone(report=report))

    def _job_of_now(self) -> tuple[Job, Path, BufferSnapshot]:
        """The job that a run would train now, the folder of its transitions, and which they are."""
        folder = self._spec.agent_folder / "replay"
        transitions = self._collection.buffer(folder).read()
        try:
            return self._build_job(transitions), folder, transitions.snapshot
        except InsufficientDataError:
            folder = self._spec.run_folder / "replay"
            snapshot = self._collection.snapshot(folder)
            job = self._build_job(self._collection.buffer(folder).read(snapshot))
            return job, folder, snapshot

    def _profile(self, request: ProfileRequest) -> None:
        """Go through a run on copies of the agent's folder; publish and keep nothing."""
        from genesis_fp16.worker.profile import RunProfile

        self.activity = "profiling"
        profile = RunProfile(self._spec, request, self._agent, self._context, self._device)
        collection = Collection(
            self._agent,
            profile.context,
            self._progress,
            begin=lambda: self._begin("collect", "collecting"),
            poll=self._read_commands,
        )
        job = profile.build(collection, self._build_job)
        self.activity = "checking the training job"
        check_fp32_step(job, self._device)
        self._begin("train", "profiling the training")
        self._emit(ProfileDone(report=profile.train(job, self._config(), self._precision)))

    def _run_lab(self, request: LabRequest) -> None:
        from genesis_fp16.worker.lab import freeze_job, repeat_job

        self.activity = f"doing the lab's {request.command}"
        context = replace(self._context, report_progress=self._progress.prompt)
        if request.command == "freeze":
            job, folder, snapshot = self._job_of_now()
            self._progress.begin("train")
            freeze_job(job, self._spec, request, folder, snapshot, context)
            return

        def build(data: Path, snapshot: BufferSnapshot) -> Job:
            return self._build_job(self._collection.buffer(data).read(snapshot))

        self._progress.begin("train")
        repeat_job(build, self._spec, request, context)

    def _emit_and_save(self, event: BaseEvent) -> None:
        """Emit *event*; save a pre-flight report in the agent's folder, too."""
        self._emit(event)
        if isinstance(event, PreflightDone):
            try:
                write_preflight(self._spec.agent_folder, event.report)
            except OSError as error:
                self._logger.warning("preflight_report_not_saved", error=str(error))

    def _config(self) -> FP16TrainingConfig:
        return trainer_config(self._spec.trainer, self._spec.agent_folder, self._device)

    def _train(self, job: Job) -> tuple[TrainingResult, BestEpoch | None]:
        spec = self._spec
        precision = broadcast_from_leader(self._ranks, self._read_commands)
        config = broadcast_from_leader(self._ranks, self._config)
        self._begin("train", "training")
        options = loop_options(spec)
        with PacedEvents(self._emit_and_save) as emit:
            env = TrainingEnv(
                device=self._device,
                precision=precision,
                config=config,
                options=options,
                folder=spec.run_folder / "checkpoints",
                emit=emit,
                commands=self._inbox.drain,
                observe_round=self._mismatch_observer(job, config, emit),
                best_epoch=(
                    spec.run_folder / "best-epoch.pt" if kind_of(job).keeps_best_epoch else None
                ),
            )
            training = prepare(job, env)
            return run(training), training.best_epoch

    def _mismatch_observer(
        self, job: Job, config: FP16TrainingConfig, emit: Emit
    ) -> Callable[[GeneratedRound, int], None] | None:
        """What compares trainer and rollout, or None if this job is not to be measured."""
        interval = self._spec.mismatch_interval_rounds
        log_probs = kind_of(job).log_probs
        if not interval or log_probs is None:
            return None
        from infrastructure.policy.mismatch import MismatchObserver

        return MismatchObserver(log_probs, interval, emit, cpu_half=config.cpu_half)

    def _publish(self, job: Job, result: TrainingResult, best: BestEpoch | None) -> None:
        """Publish the weights of *best*, if an epoch is in it, else those of the last epoch."""
        evaluation = result.evaluation
        if evaluation is None:
            raise RuntimeError("training ended without an evaluation, so nothing can be published")
        self._begin("publish", "publishing")
        if best is not None:
            evaluation = best.restore(job.model) or evaluation
        report = EvaluationReport(evaluation=evaluation, steps=result.steps, epochs=result.epochs)
        versions = PublishedVersions(self._spec, self._collection, self._logger)
        with versions.publishing():
            returned = self._agent.publish(self._context, job.model.eval(), report)
            publication = check_type(returned, Publication, "publish() must return")
            if publication.published:
                versions.keep(publication)
        self._emit(
            Published(
                published=publication.published,
                reason=publication.reason,
                metrics=dict(publication.metrics),
            )
        )


def broadcast_from_leader(ranks: Ranks, compute: Callable[[], T]) -> T:
    """Call *compute* on the leader while the other ranks wait; return its result on every rank.

    Raises:
        StoppedError: *compute* raised it; on every rank. After any other error of the leader the
            other ranks fail, too, since the leader leaves the group.
    """
    results: list[T] = []
    stop_reason = ""
    if ranks.is_rank_zero:
        try:
            results.append(compute())
        except StoppedError as error:
            stop_reason = str(error)
    results, stop_reason = ranks.broadcast((results, stop_reason))
    if not results:
        raise StoppedError(stop_reason)
    return results[0]


def _join(device: torch.device, processes: int) -> AbstractContextManager[torch.device]:
    """Join the process group of *processes* ranks that `genesis_fp16.worker.group` has started.

    Raises:
        ValueError: There are fewer CUDA devices than ranks.
    """
    if processes == 1:
        return nullcontext(device)
    if device.type == "cuda" and processes > torch.cuda.device_count():
        raise ValueError(
            f"{processes} processes need {processes} CUDA devices, but this machine has "
            f"{torch.cuda.device_count()}: lower the agent's PROCESSES_PER_RUN, or set "
            "GENESIS_DEVICE=cpu"
        )
    return process_group(device)


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # agents may draw from the global generator
    torch.manual_seed(seed)
