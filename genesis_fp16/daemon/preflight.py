"""A pre-flight measurement of one agent's job, in a worker: torch is not imported here."""

from __future__ import annotations

from genesis_fp16.daemon.agent_task import run_agent_task
from genesis_fp16.settings import Settings
from infrastructure.events.event import PreflightDone
from infrastructure.events.preflight_report import PreflightReport


def run_preflight(settings: Settings, agent: str) -> PreflightReport:
    """Measure the job that *agent* would train now; keep the report in the agent's folder.

    Raises:
        AgentTaskError: The job could not be measured.
        UnknownAgentError: *agent* is not installed.
        ShadowedPackageError: The worker would import another training library.
    """
    events = run_agent_task(settings, agent, "preflight", done="measured")
    return next(event.report for event in events if isinstance(event, PreflightDone))
