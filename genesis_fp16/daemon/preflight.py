"""A pre-flight measurement of one agent's job, in a worker: torch is not imported here."""

from __future__ import annotations

import os
import shutil
import time
from uuid import uuid4

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.run import EXIT_CODES
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors import ExitStatus, LocalExecutor
from genesis_fp16.plugins.discovery import check_not_shadowed, installed_agent
from genesis_fp16.runs.spec import spec_of_settings
from genesis_fp16.settings import Settings
from genesis_fp16.system.permissions import private_umask
from genesis_fp16.system.signals import Signals
from infrastructure.events import PrecisionState, read_events
from infrastructure.events.event import Finished, PreflightDone
from infrastructure.events.preflight_report import PreflightReport

_POLL_SECONDS = 0.1


class PreflightError(GenesisError, RuntimeError):
    """The job could not be measured."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_preflight(settings: Settings, agent: str) -> PreflightReport:
    """Measure the job that *agent* would train now; keep the report in the agent's folder.

    The job is built from the agent's recorded transitions; if there are too few, more are
    collected into a temporary folder. Nothing is trained or published.

    Raises:
        PreflightError: The job could not be measured.
        UnknownAgentError: *agent* is not installed.
        ShadowedPackageError: The worker would import another training library.
    """
    check_not_shadowed()
    point = installed_agent(agent)
    if point.missing:
        raise PreflightError(f"{agent} was not measured: it needs {point.missing}", os.EX_CONFIG)
    run_id = f"{agent}-{uuid4().hex[:12]}"
    folder = settings.home.absolute() / "preflights" / run_id
    spec = RunSpec(
        run_id=run_id,
        attempt=1,
        incarnation=uuid4().hex,
        agent=agent,
        entry_point=point.target,
        run_folder=folder,
        attempt_folder=folder,
        seed=settings.seed,
        precision=PrecisionState(requested="auto", effective="auto", reason="operator"),
        task="preflight",
        **spec_of_settings(settings, agent),
    )
    with private_umask(settings.home.absolute()):
        folder.mkdir(parents=True)
        status = _run(spec, settings.run_timeout_seconds)
    report = _report(spec, status)
    shutil.rmtree(folder, ignore_errors=True)  # after a failure it stays, with the log
    return report


def _run(spec: RunSpec, timeout_seconds: float) -> ExitStatus:
    """Run the worker to its end; none of its processes outlives this call."""
    executor = LocalExecutor()
    deadline = time.monotonic() + timeout_seconds
    with Signals() as signals:
        handle = executor.submit(spec)
        try:
            while (status := executor.poll(handle)) is None:
                if signals.stop_count:
                    raise PreflightError("interrupted: nothing was measured", os.EX_TEMPFAIL)
                if time.monotonic() >= deadline:
                    raise PreflightError(
                        f"{spec.agent} was not measured within {timeout_seconds:g} s: raise "
                        f"GENESIS_RUN_TIMEOUT_SECONDS; see {spec.attempt_folder}",
                        1,
                    )
                time.sleep(_POLL_SECONDS)
        finally:
            executor.kill(handle)
            while executor.poll(handle) is None:
                time.sleep(_POLL_SECONDS)
    return status


def _report(spec: RunSpec, status: ExitStatus) -> PreflightReport:
    error, exit_code = "", 1
    for event in read_events(spec.events_path):
        if isinstance(event, PreflightDone):
            return event.report
        if isinstance(event, Finished):
            error, exit_code = event.error, EXIT_CODES[event.outcome]
    if not error:
        ended = f"signal {status.signal}" if status.signal else f"status {status.exit_code}"
        error = f"the worker ended with {ended}: see {spec.attempt_folder / 'worker.log'}"
    raise PreflightError(error, exit_code or 1)
