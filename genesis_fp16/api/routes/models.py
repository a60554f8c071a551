"""Kept versions of an agent's published model, and back to an earlier one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from genesis_fp16.api import views
from genesis_fp16.api.routes.parameters import AgentName, CallerHere, Change, ReadingsHere
from genesis_fp16.daemon import models
from genesis_fp16.domain.reason import one_line

router = APIRouter(tags=["models"])


class RollBack(Change):
    """A way back to an earlier version.

    Attributes:
        version: Its id; null for the one that the model in use replaced.
    """

    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z-]{0,63}$")] | None = None


@router.get("/agents/{name}/models")
def list_models(name: AgentName, readings: ReadingsHere) -> views.ModelsView:
    """The kept versions of the agent's model, and the one in use."""
    return readings.models(name)


@router.post("/agents/{name}/models/keep")
def keep(
    name: AgentName, change: Change, readings: ReadingsHere, caller: CallerHere
) -> views.ModelsView:
    """Let the guard leave the version in use alone, until another one is published."""
    readings.check_agent(name)
    models.keep_in_use(
        readings.settings,
        readings.store,
        name,
        actor=caller.actor,
        reason=one_line(change.reason),
    )
    return readings.models(name)


@router.post("/agents/{name}/models/rollback")
def roll_back(
    name: AgentName, change: RollBack, readings: ReadingsHere, caller: CallerHere
) -> views.ModelsView:
    """Make an earlier version the model in use; later runs must beat that one."""
    readings.check_agent(name)
    models.roll_back(
        readings.settings,
        readings.store,
        name,
        change.version,
        actor=caller.actor,
        reason=one_line(change.reason),
    )
    return readings.models(name)
