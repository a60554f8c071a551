"""The tasks of a worker, one function each; `TASKS` has all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch

from genesis_fp16.domain.run import Outcome
from genesis_fp16.domain.run_spec import ProfileRequest, RunSpec, Task
from genesis_fp16.plugins.agent_folder import write_preflight
from genesis_fp16.worker.attempt import Attempt, Phases, StoppedError, begin_attempt
from genesis_fp16.worker.channel import CommandInbox, Emit, PacedEvents
from genesis_fp16.worker.collection import check_type, repeated_snapshot
from genesis_fp16.worker.config import loop_options, trainer_config
from genesis_fp16.worker.job import build_job, job_of_now
from genesis_fp16.worker.published_versions import PublishedVersions
from genesis_fp16.worker.rung import RungSearch
from infrastructure.agent_contract import EvaluationReport, Job, Publication
from infrastructure.agent_contract.agent import InsufficientDataError, RecordedTransitions
from infrastructure.agent_contract.parts import part_place
from infrastructure.events.event import BaseEvent, PreflightDone, ProfileDone, Published
from infrastructure.events.preflight_report import PreflightReport
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics import check_fp32_step
from infrastructure.training.diagnostics.preflight import preflight
from infrastructure.training.loop import TrainingEnv, TrainingResult, prepare, run
from infrastructure.training.rounds import GeneratedRound, kind_of
from infrastructure.trajectories import BufferSnapshot

_PROPOSAL_SECONDS = 60.0  # of a search within a pre-flight measurement


def do_task(spec: RunSpec, phases: Phases, inbox: CommandInbox) -> Outcome:
    """Do the task of *spec*; an exception means that the attempt is not complete."""
    with begin_attempt(spec, phases, inbox) as attempt:
        return TASKS[spec.task](attempt)


def train(attempt: Attempt) -> Outcome:
    """Collect, train, publish."""
    spec, phases = attempt.spec, attempt.phases
    transitions = _transitions(attempt)
    try:
        job = build_job(attempt, transitions)
    except InsufficientDataError as error:
        phases.emit(Published(published=False, reason=_describe_lack(attempt, error, transitions)))
        return "no_data" if _is_nothing(error) or not len(transitions) else "done"
    phases.activity = "checking the training job"
    check_fp32_step(job, attempt.device)
    precision = attempt.on_rank_zero(attempt.idle_commands.execute)
    config = attempt.on_rank_zero(lambda: _config(attempt))
    phases.begin("train", "training")
    with ExitStack() as stack:
        emit: Emit = stack.enter_context(PacedEvents(lambda event: _emit_and_save(attempt, event)))
        search = _rung_search(attempt, job, emit)
        if search is not None:
            stack.enter_context(search)
            emit = search.note
        env = TrainingEnv(
            device=attempt.device,
            precision=precision,
            config=config,
            options=loop_options(spec),
            folder=spec.run_folder / "checkpoints",
            emit=emit,
            commands=attempt.inbox.drain,
            observe_round=_round_observer(_mismatch_observer(spec, job, config, emit), search),
            batch_observer=search,
            best_epoch=spec.run_folder / "best-epoch.pt",
        )
        result = run(prepare(job, env))
        if search is not None and result.outcome != "stopped":
            phases.activity = "finishing the search for the modules that must be in FP32"
            with suppress(StoppedError):  # the training is done in any case
                search.finish(attempt.idle_commands.execute)
    attempt.leave_ranks()
    if result.outcome == "stopped":
        return "stopped"
    if attempt.ranks.is_rank_zero and spec.repeats is None:
        _publish(attempt, job, result)
        phases.activity = "compacting the replay buffer"
        with suppress(StoppedError):  # the run is done in any case
            folder = spec.agent_folder / "replay"
            attempt.collection.compact(folder, attempt.idle_commands.execute)
    return "done"


def measure(attempt: Attempt) -> Outcome:
    """Run the pre-flight measurement on the job that a run would train now."""
    job, _, _ = job_of_now(attempt)
    attempt.phases.activity = "measuring the training job"
    check_fp32_step(job, attempt.device)
    config = _config(attempt)
    report = _with_proposal(attempt, job, preflight(job, attempt.device, config), config)
    _emit_and_save(attempt, PreflightDone(report=report))
    return "done"


def profile(attempt: Attempt) -> Outcome:
    """Go through a run on copies of the agent's folder; publish and keep nothing."""
    from genesis_fp16.worker.profile import RunProfile

    spec, phases = attempt.spec, attempt.phases
    phases.activity = "profiling"
    request = spec.profile or ProfileRequest(precision=spec.precision)
    measured = RunProfile(spec, request, attempt.agent, attempt.context, attempt.device)
    collection = attempt.collection_in(measured.context)
    job = measured.build(collection, lambda transitions: build_job(attempt, transitions))
    phases.activity = "checking the training job"
    check_fp32_step(job, attempt.device)
    phases.begin("train", "profiling the training")
    precision = attempt.idle_commands.execute()
    report = measured.train(job, _config(attempt), precision)
    phases.emit(ProfileDone(report=report))
    return "done"


def run_lab(attempt: Attempt) -> Outcome:
    """Freeze the agent's job for the precision lab, or repeat one that was frozen."""
    from genesis_fp16.worker.lab import freeze_job, repeat_job

    spec, request, progress = attempt.spec, attempt.spec.lab, attempt.phases.progress
    if request is None:
        raise ValueError("the task lab needs the specification's field lab: set it")
    attempt.phases.activity = f"doing the lab's {request.command}"
    context = replace(attempt.context, report_progress=progress.prompt)
    if request.command == "freeze":
        job, folder, snapshot = job_of_now(attempt)
        progress.begin("train")
        freeze_job(job, spec, request, folder, snapshot, context)
        return "done"

    def build(data: Path, snapshot: BufferSnapshot) -> Job:
        return build_job(attempt, attempt.collection.buffer(data).read(snapshot))

    progress.begin("train")
    repeat_job(build, spec, request, context)
    return "done"


def search_rung(attempt: Attempt) -> Outcome:
    """Search the modules that a training must raise to FP32."""
    from genesis_fp16.worker.rung.search import search

    return search(attempt)


TASKS: Mapping[Task, Callable[[Attempt], Outcome]] = MappingProxyType(
    {"train": train, "preflight": measure, "profile": profile, "lab": run_lab, "rung": search_rung}
)


def _transitions(attempt: Attempt) -> RecordedTransitions:
    """The run's transitions, collected by its first attempt."""
    spec, collection = attempt.spec, attempt.collection
    folder, repeated = spec.agent_folder / "replay", spec.repeats
    attempt.phases.activity = "reading the run's data"
    snapshot = attempt.on_rank_zero(
        lambda: collection.snapshot(folder) if repeated is None else repeated_snapshot(repeated)
    )
    return collection.read(folder, snapshot)


def _is_nothing(error: InsufficientDataError) -> bool:
    """Whether none of the recorded transitions, if there are any, can be used."""
    return error.got == 0 and error.what.endswith("transitions")


def _describe_lack(
    attempt: Attempt, error: InsufficientDataError, transitions: RecordedTransitions
) -> str:
    """Text of *error*, and the place of the transitions if there are none."""
    if len(transitions):
        return str(error)
    return f"{error}; {attempt.spec.agent_folder / 'replay'} holds none"


def _config(attempt: Attempt) -> FP16TrainingConfig:
    return trainer_config(attempt.spec.trainer, attempt.spec.agent_folder, attempt.device)


def _emit_and_save(attempt: Attempt, event: BaseEvent) -> None:
    """Emit *event*; save a pre-flight report in the agent's folder, too."""
    attempt.phases.emit(event)
    if isinstance(event, PreflightDone):
        try:
            write_preflight(attempt.spec.agent_folder, event.report)
        except OSError as error:
            attempt.context.logger.warning("preflight_report_not_saved", error=str(error))


def _with_proposal(
    attempt: Attempt, job: Job, report: PreflightReport, config: FP16TrainingConfig
) -> PreflightReport:
    """*report* with the modules that a search proposes to keep in FP32."""
    from genesis_fp16.worker.rung.search import propose

    attempt.phases.activity = "searching the modules that must be in FP32"
    try:
        found = propose(
            job, attempt.device, config, seconds=_PROPOSAL_SECONDS, seed=attempt.spec.seed
        )
    except (RuntimeError, ValueError, torch.OutOfMemoryError) as error:  # of the job's own code
        attempt.context.logger.warning("precision_not_searched", error=str(error))
        return report
    if found is None:
        return report
    text = found.proposal or found.reason
    in_fp32 = (part_place(part) for part, name in found.parts.items() if name == "fp32")
    changes = {"proposed_keep_fp32": (*found.modules, *in_fp32), "proposal": text}
    return report.model_copy(update=changes)


def _mismatch_observer(
    spec: RunSpec, job: Job, config: FP16TrainingConfig, emit: Emit
) -> Callable[[GeneratedRound, int], None] | None:
    """What compares trainer and rollout, or None if this job is not to be measured."""
    interval = spec.mismatch_interval_rounds
    log_probs = kind_of(job).log_probs
    if not interval or log_probs is None:
        return None
    from infrastructure.policy.mismatch import MismatchObserver

    return MismatchObserver(log_probs, interval, emit, cpu_half=config.cpu_half)


def _round_observer(
    mismatch: Callable[[GeneratedRound, int], None] | None, search: RungSearch | None
) -> Callable[[GeneratedRound, int], None] | None:
    """What measures a round that was generated, and keeps what a search needs of it."""
    if search is None:
        return mismatch

    def observe(generated: GeneratedRound, step: int) -> None:
        search.keep_round(generated)
        if mismatch is not None:
            mismatch(generated, step)

    return observe


def _rung_search(attempt: Attempt, job: Job, emit: Emit) -> RungSearch | None:
    """What searches, after a rollback, the modules to raise; None if nothing is to be searched."""
    wanted = attempt.spec.rung_search_seconds > 0 and attempt.ranks.is_rank_zero
    return RungSearch(attempt.spec, job, emit) if wanted else None


def _publish(attempt: Attempt, job: Job, result: TrainingResult) -> None:
    """Let the agent publish the weights that the training left."""
    evaluation = result.evaluation
    if evaluation is None:
        raise RuntimeError(
            "the training is done, but its model was not evaluated, so nothing can be published: "
            f"report this as a bug of genesis-fp16, with {attempt.spec.attempt_folder}"
        )
    attempt.phases.begin("publish", "publishing")
    report = EvaluationReport(evaluation=evaluation, steps=result.steps, epochs=result.epochs)
    versions = PublishedVersions(attempt.spec, attempt.collection, attempt.context.logger)
    with versions.publishing():
        returned = attempt.agent.publish(attempt.context, job.model.eval(), report)
        publication = check_type(returned, Publication, "publish() must return")
        if publication.published:
            versions.keep(publication)
    attempt.phases.emit(
        Published(
            published=publication.published,
            reason=publication.reason,
            metrics=dict(publication.metrics),
        )
    )
