"""What a worker does: collect, train, publish; as one of several ranks together with the others."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.run import Outcome
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.plugins.agent_folder import write_preflight
from genesis_fp16.plugins.loading import load_agent, validate_settings
from genesis_fp16.worker.channel import CommandInbox, Emit, ProgressReporter, run_logger
from genesis_fp16.worker.collection import Collection
from genesis_fp16.worker.config import trainer_config
from genesis_fp16.worker.contract_check import checked
from genesis_fp16.worker.pacing import PacedEvents
from genesis_fp16.worker.ranks import StoppedError, join, led
from genesis_fp16.worker.run_data import kept_snapshot
from infrastructure.agent_contract import (
    Agent,
    EvaluationReport,
    Publication,
    RunContext,
    TrainingJob,
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
    Published,
    Started,
)
from infrastructure.training.diagnostics.fp32_check import check_fp32_step
from infrastructure.training.diagnostics.preflight import preflight
from infrastructure.training.distributed.ranks import Ranks
from infrastructure.training.loop.train import LoopOptions, TrainingResult, train
from infrastructure.training.precision.precision import resolve_device
from infrastructure.trajectories import BufferSnapshot


class WrongDeviceError(GenesisError, ValueError):
    """There is no such device, or not one for each rank."""

    exit_code = os.EX_CONFIG


class Attempt:
    """The life of one attempt, from collecting to publishing.

    Args:
        spec: What to do.
        emit: Takes events.
        inbox: Gives commands.

    Attributes:
        doing: What is under way, in words that follow "failed while".
    """

    def __init__(self, spec: RunSpec, emit: Emit, inbox: CommandInbox) -> None:
        self._spec, self._emit, self._inbox = spec, emit, inbox
        self._precision = spec.precision
        self._progress = ProgressReporter(emit)
        self._logger = run_logger(emit, spec.agent, spec.run_id)
        self.doing = "loading the agent"

    def run(self) -> Outcome:
        """Do everything; an exception means that it is not all done."""
        self._load()
        with self._joined():
            if self._spec.task == "preflight":
                self._measure()
                return "done"
            transitions = self._recorded(self._spec.agent_folder / "replay")
            try:
                job = self._build_job(transitions)
            except InsufficientDataError as error:
                self._emit(Published(published=False, reason=str(error)))
                return "done"
            self.doing = "checking the training job"
            check_fp32_step(job, self._device)
            result = self._train(job)
        if result.outcome == "stopped":
            return "stopped"
        if self._ranks.leads and self._spec.repeats is None:
            self._publish(job, result)
        return "done"

    def _load(self) -> None:
        spec = self._spec
        if spec.threads:
            torch.set_num_threads(spec.threads)
        self._agent: Agent = load_agent(spec.entry_point, spec.agent)
        self._settings = validate_settings(self._agent, spec.settings)
        for folder in (spec.agent_folder, spec.run_folder):
            folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Be up, and do what follows together with the other ranks, if there are any."""
        spec = self._spec
        try:
            joining = join(resolve_device(spec.device), spec.processes_per_run)
        except ValueError as error:
            raise WrongDeviceError(str(error)) from error
        self.doing = "joining the other ranks"
        with joining as self._device:
            self._ranks = Ranks()
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
            )
            device, version = str(self._device), torch.__version__
            self._emit(Started(pid=os.getpid(), device=device, torch_version=version))
            self._collection = Collection(
                self._agent,
                self._context,
                self._progress,
                begin=lambda: self._begin("collect", "collecting"),
                poll=self._heard,
            )
            yield

    def _begin(self, phase: Phase, doing: str) -> None:
        self.doing = doing
        self._progress.begin(phase)
        self._emit(PhaseStarted(phase=phase))

    def _heard(self) -> PrecisionState:
        """Obey commands while nothing trains: the wish for a precision waits for the trainer.

        Raises:
            StoppedError: One of them was to stop.
        """
        for command in self._inbox.drain():
            if isinstance(command, Stop):
                raise StoppedError(command.reason)
            if isinstance(command, SetPrecision):
                self._precision = command.state
        return self._precision

    def _recorded(self, folder: Path) -> RecordedTransitions:
        self.doing = "reading the run's data"
        repeated = self._spec.repeats
        snapshot = led(
            self._ranks,
            lambda: (
                self._collection.snapshot(folder)
                if repeated is None
                else kept_snapshot(repeated, BufferSnapshot.from_json)
            ),
        )
        return self._collection.buffer(folder).read(snapshot)

    def _build_job(self, transitions: RecordedTransitions) -> TrainingJob:
        led(self._ranks, self._heard)
        self.doing = "building the training job"
        _seed_everything(self._spec.seed)
        job = self._agent.build_job(self._context, transitions)
        return checked(job, TrainingJob, "build_job() must return")

    def _measure(self) -> None:
        """Measure the job that a run would train now; record nothing of the agent's.

        Where the agent's replay buffer does not suffice, transitions are collected beside it.
        """
        kept = self._collection.buffer(self._spec.agent_folder / "replay")
        try:
            job = self._build_job(kept.read())
        except InsufficientDataError:
            job = self._build_job(self._recorded(self._spec.run_folder / "replay"))
        self.doing = "measuring the training job"
        check_fp32_step(job, self._device)
        report = preflight(job, self._device, trainer_config(self._spec, self._device))
        self._tell(PreflightDone(report=report))

    def _tell(self, event: BaseEvent) -> None:
        """Emit *event*; a measurement is kept for `doctor` too."""
        self._emit(event)
        if isinstance(event, PreflightDone):
            try:
                write_preflight(self._spec.agent_folder, event.report)
            except OSError as error:
                self._logger.warning("preflight_not_kept", error=str(error))

    def _train(self, job: TrainingJob) -> TrainingResult:
        spec = self._spec
        precision = led(self._ranks, self._heard)
        config = led(self._ranks, lambda: trainer_config(spec, self._device))
        self._begin("train", "training")
        options = LoopOptions(
            seed=spec.seed,
            stats_interval_steps=spec.stats_interval_steps,
            baseline_interval_steps=spec.baseline_interval_steps,
            checkpoint_interval_seconds=spec.checkpoint_interval_seconds,
            keep_checkpoints=spec.keep_checkpoints,
            profile_steps=spec.profile_steps,
            parallel=spec.parallel,
        )
        with PacedEvents(self._tell) as emit:
            return train(
                job,
                device=self._device,
                precision=precision,
                config=config,
                options=options,
                folder=spec.run_folder / "checkpoints",
                emit=emit,
                commands=self._inbox.drain,
            )

    def _publish(self, job: TrainingJob, result: TrainingResult) -> None:
        if result.evaluation is None:
            raise RuntimeError("training ended without an evaluation, so nothing can be published")
        self._begin("publish", "publishing")
        report = EvaluationReport(
            evaluation=result.evaluation, steps=result.steps, epochs=result.epochs
        )
        decided = self._agent.publish(self._context, job.model.eval(), report)
        decision = checked(decided, Publication, "publish() must return")
        self._emit(
            Published(
                published=decision.published,
                reason=decision.reason,
                metrics=dict(decision.metrics),
            )
        )


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # agents may draw from the global generator
    torch.manual_seed(seed)
