"""A profile of one agent's run, in a worker: torch is not imported here."""

from __future__ import annotations

import math
import os

from genesis_fp16.daemon.agent_task import AgentTaskError, run_agent_task
from genesis_fp16.domain.guard import Decision
from genesis_fp16.domain.precision import (
    Device,
    PrecisionInputs,
    applicable_overrides,
    resolve_precision,
)
from genesis_fp16.domain.run import ACTIVE
from genesis_fp16.domain.run_spec import ProfileRequest
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.daemon_status import find_daemon
from infrastructure.events import PrecisionState
from infrastructure.events.event import ProfileDone
from infrastructure.events.profile_report import ProfileReport


def run_profile(
    settings: Settings, agent: str, store: Store | None, *, collect_seconds: float
) -> ProfileReport:
    """Measure a run of *agent* as it would begin now; keep and publish nothing.

    Args:
        store: Store of overrides, decisions and runs; None if no daemon has served yet.
        collect_seconds: Longest time for collecting, at most that of a run; 0 uses what is
            recorded.

    Raises:
        AgentTaskError: The agent is training now, or its run failed.
        UnknownAgentError: *agent* is not installed.
        ShadowedPackageError: The worker would import another training library.
    """
    for run in store.unfinished(agent) if store is not None else ():
        if run.state in ACTIVE:
            remedy = f"wait for its end (genesis-fp16 runs show {run.id})"
            if find_daemon(settings.home.absolute()) is None:
                remedy = "no daemon serves here: genesis-fp16 serve brings the run to its end"
            raise AgentTaskError(
                f"{agent} was not profiled: its run {run.id} is {run.state}, and both would slow "
                f"the other down; {remedy}",
                os.EX_TEMPFAIL,
            )
    request = ProfileRequest(
        precision=_precision_now(settings, agent, store),
        collect_seconds=min(collect_seconds, settings.budget_seconds),
    )
    events = run_agent_task(settings, agent, "profile", done="profiled", request=request)
    report = next(event.report for event in events if isinstance(event, ProfileDone))
    remarks = list(report.remarks)
    if (count := settings.for_agent(agent).processes_per_run) > 1:
        remarks.append(f"a run trains in {count} processes; one was measured")
    changes = {"prewarmed": settings.prewarm, "remarks": tuple(remarks)}
    return report.model_copy(update=changes)


def active_agents(store: Store | None) -> list[str]:
    """Agents that train now."""
    runs = store.unfinished() if store is not None else []
    return sorted({run.agent for run in runs if run.state in ACTIVE})


def _precision_now(settings: Settings, agent: str, store: Store | None) -> PrecisionState:
    """Precision of a run that begins now, on a device with both half types.

    The worker falls back to FP32 where its own device lacks the half type.
    """
    agent_settings = settings.for_agent(agent)
    decision = store.guard.latest().get(agent) if store is not None else None
    guard = settings.guard_decision(decision or Decision(agent=agent))
    overrides = store.overrides.in_force() if store is not None else ()
    return resolve_precision(
        PrecisionInputs(
            flag=settings.enable_fp16_training,
            default=settings.precision,
            agent=agent_settings.precision,
            preset=agent_settings.role_preset,
            overrides=applicable_overrides(overrides, agent, math.inf),
            device=Device(accelerator=True, fp16=True, bf16=True),
            guard=guard.demands_fp32,
            guard_roles=guard.roles,
            guard_modules=guard.modules,
            guard_parts=guard.parts,
        )
    )
