"""A pre-flight measurement of one agent's job, in a worker: torch is not imported here."""

from __future__ import annotations

from genesis_fp16.daemon.agent_task import AgentTaskError, run_agent_task
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
    for event in run_agent_task(settings, agent, "preflight", done="measured"):
        if isinstance(event, PreflightDone):
            return event.report
    raise AgentTaskError(f"{agent} was not measured: its worker has sent no report", 1)
