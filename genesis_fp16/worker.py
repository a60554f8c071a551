"""One attempt of one run, in a process of its own: collect, train, publish.

``python -m genesis_fp16.worker SPEC`` reads one file, reports events into another and obeys
commands on stdin, whose end means that the daemon is gone. It exits with 0 when everything is
done, 75 when it has stopped and wants to go on later, 78 when no retry can help, 1 otherwise.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Literal

import numpy as np
import torch

from genesis_fp16.agent_files import write_preflight, write_whole
from genesis_fp16.contract_check import checked
from genesis_fp16.descendants import keep_orphans
from genesis_fp16.errors import GenesisError
from genesis_fp16.last_words import leave, print_traceback, why_failed
from genesis_fp16.probe import AgentRefusedError, load_agent, validate_settings
from genesis_fp16.run_data import RunData
from genesis_fp16.run_spec import RunSpec
from genesis_fp16.worker_channel import (
    CommandInbox,
    Emit,
    ProgressReporter,
    configure_worker_logging,
    run_logger,
)
from infrastructure.agent_contract import (
    Agent,
    EvaluationReport,
    Publication,
    RunContext,
    TrainingJob,
    Transition,
)
from infrastructure.agent_contract.agent import InsufficientDataError, RecordedTransitions
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import EventWriter, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import (
    BaseEvent,
    Finished,
    Phase,
    PhaseStarted,
    PreflightDone,
    Published,
    Started,
)
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.fp32_check import HalfPrecisionInModelError, check_fp32_step
from infrastructure.training.loop import LoopOptions, TrainingResult, train
from infrastructure.training.precision import resolve_device
from infrastructure.training.preflight import preflight
from infrastructure.trajectories import BufferSnapshot, ReplayBuffer

Outcome = Literal["done", "stopped", "failed", "misconfigured"]
EXIT_CODES: dict[Outcome, int] = {
    "done": 0,
    "stopped": os.EX_TEMPFAIL,
    "misconfigured": os.EX_CONFIG,
    "failed": 1,
}


class _StoppedError(Exception):
    """The daemon asked the run to stop while nothing was training."""


class _WrongDeviceError(GenesisError, ValueError):
    exit_code = os.EX_CONFIG


class _Attempt:
    """The life of one attempt, from collecting to publishing.

    Args:
        spec: What to do.
        emit: Takes events.
        inbox: Gives commands.
    """

    def __init__(self, spec: RunSpec, emit: Emit, inbox: CommandInbox) -> None:
        self._spec, self._emit, self._inbox = spec, emit, inbox
        self._precision = spec.precision
        self._progress = ProgressReporter(emit)
        self._logger = run_logger(emit, spec.agent, spec.run_id)
        self.doing = "loading the agent"

    def run(self) -> Outcome:
        """Do everything; an exception means that it is not all done."""
        self._prepare()
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
        self._publish(job, result)
        return "done"

    def _prepare(self) -> None:
        spec = self._spec
        if spec.threads:
            torch.set_num_threads(spec.threads)
        self._agent: Agent = load_agent(spec.entry_point, spec.agent)
        settings = validate_settings(self._agent, spec.settings)
        try:
            self._device = resolve_device(spec.device)
        except ValueError as error:
            raise _WrongDeviceError(str(error)) from error
        for folder in (spec.agent_folder, spec.run_folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._context = RunContext(
            run_id=spec.run_id,
            attempt=spec.attempt,
            agent=spec.agent,
            device=str(self._device),
            seed=spec.seed,
            agent_folder=spec.agent_folder,
            run_folder=spec.run_folder,
            budget=Budget(seconds=spec.budget_seconds, transitions=spec.budget_transitions),
            settings=settings,
            logger=self._logger,
            report_progress=self._progress,
        )
        self._emit(
            Started(pid=os.getpid(), device=str(self._device), torch_version=torch.__version__)
        )

    def _begin(self, phase: Phase, doing: str) -> None:
        self.doing = doing
        self._progress.begin(phase)
        self._emit(PhaseStarted(phase=phase))

    def _poll(self) -> None:
        """Obey commands while nothing trains: the wish for a precision waits for the trainer."""
        for command in self._inbox.drain():
            if isinstance(command, Stop):
                raise _StoppedError(command.reason)
            if isinstance(command, SetPrecision):
                self._precision = command.state

    def _build_job(self, transitions: RecordedTransitions) -> TrainingJob:
        self._poll()
        self.doing = "building the training job"
        _seed_everything(self._spec.seed)
        job = self._agent.build_job(self._context, transitions)
        return checked(job, TrainingJob, "build_job() must return")

    def _measure(self) -> None:
        """Measure the job that a run would train now; record nothing of the agent's.

        Where the agent's replay buffer does not suffice, transitions are collected beside it.
        """
        kept = ReplayBuffer(self._spec.agent_folder / "replay", on_skip=self._warn_of_skipped)
        try:
            job = self._build_job(kept.read())
        except InsufficientDataError:
            job = self._build_job(self._recorded(self._spec.run_folder / "replay"))
        self.doing = "measuring the training job"
        check_fp32_step(job, self._device)
        report = preflight(job, self._device, self._trainer_config())
        self._tell(PreflightDone(report=report))

    def _tell(self, event: BaseEvent) -> None:
        """Emit *event*; a measurement is kept for `doctor` too."""
        self._emit(event)
        if isinstance(event, PreflightDone):
            try:
                write_preflight(self._spec.agent_folder, event.report)
            except OSError as error:
                self._logger.warning("preflight_not_kept", error=str(error))

    def _recorded(self, folder: Path) -> RecordedTransitions:
        """Collect into *folder*, unless an earlier attempt has: all train on the same data."""
        buffer = ReplayBuffer(folder, on_skip=self._warn_of_skipped)
        self.doing = "reading the run's data"
        data = RunData(self._spec.run_folder, self._spec.attempt, self._logger)
        if (kept := data.read(BufferSnapshot.from_json)) is not None:
            return buffer.read(kept)
        self._begin("collect", "collecting")
        with closing(buffer):  # whatever happens, what was recorded is on disk
            self._collect(buffer)
        self._progress.flush()
        snapshot = buffer.snapshot()
        write_whole(data.path, json.dumps(snapshot.to_json()))
        return buffer.read(snapshot)

    def _collect(self, buffer: ReplayBuffer) -> None:
        budget = self._context.budget
        deadline = time.monotonic() + budget.seconds
        own_reports = 0
        with closing(self._transitions()) as transitions:
            for recorded, transition in enumerate(transitions, start=1):
                buffer.append(checked(transition, Transition, "collect() must yield"))
                if self._progress.reports == own_reports:  # the agent itself reports nothing
                    self._progress(recorded, budget.transitions, unit="transitions")
                    own_reports += 1
                self._poll()
                if recorded >= budget.transitions or time.monotonic() >= deadline:
                    break

    def _transitions(self) -> Generator[Transition, None, None]:
        """The agent's transitions; its generator is closed when no more are wanted."""
        source = self._agent.collect(self._context)
        try:
            yield from source
        finally:
            if hasattr(source, "close"):
                source.close()

    def _train(self, job: TrainingJob) -> TrainingResult:
        spec = self._spec
        self._poll()
        self._begin("train", "training")
        return train(
            job,
            device=self._device,
            precision=self._precision,
            config=self._trainer_config(),
            options=LoopOptions(
                seed=spec.seed,
                stats_interval_steps=spec.stats_interval_steps,
                baseline_interval_steps=spec.baseline_interval_steps,
                checkpoint_interval_seconds=spec.checkpoint_interval_seconds,
                keep_checkpoints=spec.keep_checkpoints,
            ),
            folder=spec.run_folder / "checkpoints",
            emit=self._tell,
            commands=self._inbox.drain,
        )

    def _trainer_config(self) -> FP16TrainingConfig:
        spec = self._spec
        return FP16TrainingConfig(cpu_half=spec.cpu_half, **spec.trainer.model_dump())

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

    def _warn_of_skipped(self, path: Path, offset: int, reason: str) -> None:
        self._logger.warning("record_skipped", file=str(path), offset=offset, reason=reason)


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # agents may draw from the global generator
    torch.manual_seed(seed)


def _finish(attempt: _Attempt, spec: RunSpec) -> Finished:
    """Run the attempt and say how it ended; whatever the plugin raises is not success."""
    try:
        return Finished(outcome=attempt.run())
    except _StoppedError:
        return Finished(outcome="stopped")
    except BaseException as error:  # a plugin may raise SystemExit or KeyboardInterrupt
        print_traceback()
        wrong = isinstance(error, AgentRefusedError | _WrongDeviceError | HalfPrecisionInModelError)
        if wrong:
            message = f"{spec.agent} cannot run: {error}"
        else:
            message = why_failed(error, spec, attempt.doing)
        if isinstance(error, torch.OutOfMemoryError):
            message += "; train smaller batches, or set GENESIS_DEVICE=cpu"
        return Finished(outcome="misconfigured" if wrong else "failed", error=message)


def main() -> None:
    """Run the attempt that the file named by the only argument describes."""
    faulthandler.enable()
    keep_orphans()
    configure_worker_logging()
    spec = RunSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    with EventWriter(spec.events_path) as emit:
        inbox = CommandInbox(emit)

        def stop(number: int, _frame: FrameType | None) -> None:
            inbox.put(Stop(reason=signal.Signals(number).name))

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        finished = _finish(_Attempt(spec, emit, inbox), spec)
        code = EXIT_CODES[finished.outcome]
        try:
            emit(finished)
        except OSError:  # a full disk: without its last event the attempt does not count as done
            print_traceback()
            code = code or 1
    leave(code)


if __name__ == "__main__":
    main()
