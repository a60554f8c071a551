"""One task for an agent's code in a worker, outside of any run: torch is not imported here."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from uuid import uuid4

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.run import EXIT_CODES
from genesis_fp16.domain.run_spec import LabRequest, ProfileRequest, RunSpec, Task
from genesis_fp16.executors import ExitStatus, LocalExecutor
from genesis_fp16.plugins.agent_folder import copy_agent_folder
from genesis_fp16.plugins.discovery import check_not_shadowed, installed_agent
from genesis_fp16.runs.spec import spec_of_settings
from genesis_fp16.settings import Settings
from genesis_fp16.system.permissions import private_umask
from genesis_fp16.system.signals import Signals
from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.events import PrecisionState, read_events
from infrastructure.events.event import (
    BaseEvent,
    Finished,
    PreflightDone,
    ProfileDone,
    Progress,
)
from infrastructure.events.event_log import EventTail
from infrastructure.events.precision_state import PrecisionWish

_POLL_SECONDS = 0.1
_REPORTS: Mapping[Task, type[BaseEvent]] = {"preflight": PreflightDone, "profile": ProfileDone}


class AgentTaskError(GenesisError, RuntimeError):
    """The task was not done."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_agent_task(
    settings: Settings,
    agent: str,
    task: Task,
    *,
    done: str,
    request: LabRequest | ProfileRequest | None = None,
    progress: ReportProgress | None = None,
) -> list[BaseEvent]:
    """Have a worker do *task* with the job that *agent* would train now; return its events.

    The job is built from the agent's recorded transitions; if there are too few, more are
    collected into a temporary folder. Nothing is published. No process of the worker outlives
    this call. After a failure its folder stays, with its log.

    Args:
        done: What the task does, in a word that follows "was not".
        request: Details of a task of the precision lab, which decides the precision itself, or of
            the task ``profile``, which works on a copy of the agent's folder.
        progress: Told what the worker reports.

    Raises:
        AgentTaskError: The task was not done.
        UnknownAgentError: *agent* is not installed.
        ShadowedPackageError: The worker would import another training library.
    """
    check_not_shadowed()
    point = installed_agent(agent, settings.home.absolute())
    if point.missing:
        raise AgentTaskError(f"{agent} was not {done}: it needs {point.missing}", os.EX_CONFIG)
    lab = request if isinstance(request, LabRequest) else None
    profile = request if isinstance(request, ProfileRequest) else None
    wish: PrecisionWish = "auto" if lab is None else "fp32"
    precision = PrecisionState(requested=wish, effective=wish, reason="operator")
    run_id = f"{agent}-{uuid4().hex[:12]}"
    folder = settings.home.absolute() / f"{task}s" / run_id
    spec = RunSpec(
        run_id=run_id,
        attempt=1,
        incarnation=uuid4().hex,
        agent=agent,
        entry_point=point.target,
        run_folder=folder,
        attempt_folder=folder,
        seed=settings.seed if lab is None else lab.seed,
        precision=precision if profile is None else profile.precision,
        task=task,
        lab=lab,
        profile=profile,
        **spec_of_settings(settings, agent),
    )
    copied = folder / "agent"
    with private_umask(settings.home.absolute()):
        try:
            folder.mkdir(parents=True)
            if profile is not None:
                copy_agent_folder(spec.agent_folder, copied)
                spec = spec.model_copy(update={"agent_folder": copied})
            status = _run(spec, settings.run_timeout_seconds, done, progress)
        except OSError as error:
            raise AgentTaskError(f"{agent} was not {done}: {error}", os.EX_IOERR) from error
        finally:
            shutil.rmtree(copied, ignore_errors=True)
    events: list[BaseEvent] = list(read_events(spec.events_path))
    _require_success(spec, status, events)
    report = _REPORTS.get(task)
    if report is not None and not any(isinstance(event, report) for event in events):
        log = spec.attempt_folder / "worker.log"
        raise AgentTaskError(
            f"{agent} was not {done}: its worker ended without a report; look for the cause in "
            f"{log}, then repeat the command",
            1,
        )
    shutil.rmtree(folder, ignore_errors=True)
    return events


def _run(
    spec: RunSpec, timeout_seconds: float, done: str, progress: ReportProgress | None
) -> ExitStatus:
    """Run the worker to its end; none of its processes outlives this call."""
    executor, tail = LocalExecutor(), EventTail(spec.events_path)
    deadline = time.monotonic() + timeout_seconds
    with Signals() as signals:
        handle = executor.submit(spec)
        try:
            while (status := executor.poll(handle)) is None:
                if signals.stop_count:
                    raise AgentTaskError(f"interrupted: nothing was {done}", os.EX_TEMPFAIL)
                if time.monotonic() >= deadline:
                    raise AgentTaskError(
                        f"{spec.agent} was not {done} within {timeout_seconds:g} s: raise "
                        f"GENESIS_RUN_TIMEOUT_SECONDS; see {spec.attempt_folder}",
                        1,
                    )
                if progress is not None:
                    _tell(progress, tail)
                time.sleep(_POLL_SECONDS)
        finally:
            executor.kill(handle)
            while executor.poll(handle) is None:
                time.sleep(_POLL_SECONDS)
    if progress is not None:
        _tell(progress, tail)  # what it reported last
    return status


def _tell(progress: ReportProgress, tail: EventTail) -> None:
    """Report what the worker has reported since the last call."""
    for event in tail.read():
        if isinstance(event, Progress):
            progress(event.done, event.total, unit=event.unit)


def _require_success(spec: RunSpec, status: ExitStatus, events: list[BaseEvent]) -> None:
    finished = [event for event in events if isinstance(event, Finished)]
    if finished and finished[-1].outcome == "done":
        return
    error, exit_code = "", 1
    if finished:
        error, exit_code = finished[-1].error, EXIT_CODES[finished[-1].outcome]
    if not error:
        ended = f"signal {status.signal}" if status.signal else f"status {status.exit_code}"
        error = f"the worker ended with {ended}"
    log = spec.attempt_folder / "worker.log"
    raise AgentTaskError(error if str(log) in error else f"{error}: see {log}", exit_code or 1)
