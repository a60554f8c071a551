"""Pauses: keep one agent, or all, from starting runs for a while."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from genesis_fp16.api import views
from genesis_fp16.api.routes.parameters import CallerHere, Change, Cleared, ReadingsHere
from genesis_fp16.daemon import operator
from genesis_fp16.domain.pause import Pause
from genesis_fp16.domain.reason import one_line
from infrastructure.agent_contract.agent import AGENT_NAME

router = APIRouter(tags=["pauses"])


class PauseChange(Change):
    """A pause, or the end of one.

    Attributes:
        agent: One agent; null for all.
    """

    agent: Annotated[str, Field(pattern=f"^{AGENT_NAME.pattern}$")] | None = None


class BeginPause(PauseChange):
    """A pause.

    Attributes:
        stops_runs: Whether runs under way stop after a checkpoint, to go on when resumed.
    """

    stops_runs: bool = False


@router.get("/pauses")
def list_pauses(readings: ReadingsHere) -> list[views.PauseView]:
    """All pauses in force."""
    return readings.pauses()


@router.post("/pauses/begin")
def pause(change: BeginPause, readings: ReadingsHere, caller: CallerHere) -> views.PauseView:
    """Keep one agent, or all, from starting runs, also after a restart of the daemon."""
    if change.agent is not None:
        operator.check_agent(change.agent, readings.home)
    made = Pause(
        agent=change.agent,
        reason=one_line(change.reason),
        actor=caller.actor,
        created_at=time.time(),
        stops_runs=change.stops_runs,
    )
    readings.store.pauses.begin(made)
    return views.PauseView.model_validate(made)


@router.post("/pauses/end")
def resume(change: PauseChange, readings: ReadingsHere, caller: CallerHere) -> Cleared:
    """End the pause of one agent, or the one of all; what was missed is caught up on."""
    reason = one_line(change.reason)
    if change.agent is not None and change.agent not in readings.store.pauses.in_force():
        readings.check_agent(change.agent)
    ended = readings.store.pauses.end(change.agent, actor=caller.actor, reason=reason)
    return Cleared(cleared=ended)
