"""Precision: who decides it, the operator's override, and the guard's decisions."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from genesis_fp16.api import views
from genesis_fp16.api.readings import Readings
from genesis_fp16.api.routes.parameters import AgentName, CallerHere, Change, Cleared, ReadingsHere
from genesis_fp16.daemon import operator
from genesis_fp16.domain.precision import Override
from genesis_fp16.domain.reason import one_line
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.events.precision_state import PrecisionWish

router = APIRouter(tags=["precision"])
_LONGEST_SECONDS = 10 * 366 * 86400.0
_Agent = Annotated[str, Field(pattern=f"^{AGENT_NAME.pattern}$")]


class SetPrecision(Change):
    """An override of the precision.

    Attributes:
        agent: One agent; null for all.
        for_seconds: How long it stays in force; null until it is cleared.
        next_run: Whether runs that have begun keep their precision.
    """

    precision: PrecisionWish
    agent: _Agent | None = None
    for_seconds: Annotated[float, Field(ge=1, le=_LONGEST_SECONDS)] | None = None
    next_run: bool = False


class ClearPrecision(Change):
    """The end of the override of one agent; null for the override of all."""

    agent: _Agent | None = None


@router.get("/precision")
def show_precision(readings: ReadingsHere) -> views.PrecisionOfAll:
    """What decides the precision of all agents."""
    return readings.precision_of_all()


@router.post("/precision/set")
def set_precision(
    change: SetPrecision, readings: ReadingsHere, caller: CallerHere
) -> views.OverrideView:
    """Override the precision; workers on this machine follow within two seconds."""
    if change.agent is not None:
        operator.check_agent(change.agent, readings.home)
    now = time.time()
    override = Override(
        agent=change.agent,
        precision=change.precision,
        reason=one_line(change.reason),
        actor=caller.actor,
        created_at=now,
        expires_at=None if change.for_seconds is None else now + change.for_seconds,
        next_run=change.next_run,
    )
    readings.store.overrides.set(override)
    return views.OverrideView.model_validate(override)


@router.post("/precision/clear")
def clear_precision(change: ClearPrecision, readings: ReadingsHere, caller: CallerHere) -> Cleared:
    """Withdraw the override of one agent, or the one for all."""
    if change.agent is not None:
        readings.check_agent(change.agent)
    reason = one_line(change.reason)
    cleared = readings.store.overrides.clear(change.agent, actor=caller.actor, reason=reason)
    return Cleared(cleared=cleared)


@router.get("/agents/{name}/precision")
def show_precision_of_agent(name: AgentName, readings: ReadingsHere) -> views.PrecisionView:
    """What decides the precision of the agent, and what its worker acknowledged last."""
    return readings.precision(name)


@router.get("/agents/{name}/guard")
def show_guard(name: AgentName, readings: ReadingsHere) -> views.GuardView:
    """The guard's decisions on the agent, and the evidence of its last trip."""
    return readings.guard(name)


@router.post("/agents/{name}/guard/clear")
def clear_guard(
    name: AgentName, change: Change, readings: ReadingsHere, caller: CallerHere
) -> Cleared:
    """End the guard's rollback of the agent, which tries half precision again on probation."""
    return Cleared(cleared=end_rollback(readings, name, caller.actor, change.reason))


def end_rollback(readings: Readings, agent: str, actor: str, reason: str) -> bool:
    """End the guard's rollback of *agent*; False if it has not tripped."""
    readings.check_agent(agent)
    cleared = operator.clear_guard(
        readings.home, readings.in_force, readings.store, agent, actor=actor, reason=reason
    )
    return cleared is not None


@router.get("/agents/{name}/mismatch")
def list_mismatches(name: AgentName, readings: ReadingsHere) -> list[views.MismatchPoint]:
    """How far trainer and rollout of a policy were apart in its newest runs, oldest first."""
    return readings.mismatches(name)
