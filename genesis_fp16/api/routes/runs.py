"""Runs: lists, one run, its curve, its logs, and its end."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from genesis_fp16.api import views
from genesis_fp16.api.routes.parameters import (
    RUN_NAME,
    CallerHere,
    Change,
    Limit,
    ReadingsHere,
    RunId,
)
from genesis_fp16.daemon import operator
from genesis_fp16.domain.run import RunState
from infrastructure.agent_contract.agent import AGENT_NAME

router = APIRouter(tags=["runs"])


@router.get("/runs")
def list_runs(
    readings: ReadingsHere,
    agent: Annotated[str | None, Query(pattern=f"^{AGENT_NAME.pattern}$")] = None,
    state: Annotated[list[RunState] | None, Query(description="Only these; else all.")] = None,
    before: Annotated[
        str | None,
        Query(pattern=RUN_NAME, description="Go on after this run of a list: its id or number."),
    ] = None,
    limit: Limit = 50,
) -> list[views.RunView]:
    """The newest runs, newest first."""
    return readings.runs(agent, states=state or (), before=before, limit=limit)


@router.get("/queue")
def show_queue(readings: ReadingsHere) -> list[views.QueuedRunView]:
    """The runs that wait, in the order in which they start: what for, and until when."""
    return readings.queue()


@router.get("/runs/{run_id}")
def show_run(run_id: RunId, readings: ReadingsHere) -> views.RunDetail:
    """One run with its newest attempts."""
    return readings.run(run_id)


@router.get("/runs/{run_id}/curve")
def show_curve(
    run_id: RunId,
    readings: ReadingsHere,
    points: Annotated[int, Query(ge=2, le=5000, description="Most points to return.")] = 500,
) -> views.RunCurve:
    """The curve of the run's loss and loss scale, thinned; the stream of events goes on from it."""
    return readings.curve(run_id, points)


@router.get("/runs/{run_id}/attempts/{number}/log")
def show_log(
    run_id: RunId,
    number: Annotated[int, Path(ge=1, le=2**31 - 1)],
    readings: ReadingsHere,
    size: Annotated[
        int, Query(alias="bytes", ge=1, le=1 << 20, description="Bytes of its end to return.")
    ] = 1 << 16,
) -> views.LogTail:
    """The end of the log of an attempt's worker."""
    return readings.log_tail(run_id, number, size)


@router.post("/runs/{run_id}/cancel", status_code=202)
def cancel_run(
    run_id: RunId, change: Change, readings: ReadingsHere, caller: CallerHere
) -> views.RunView:
    """Cancel the run: one that trains writes a checkpoint and stops."""
    operator.cancel_run(readings.store, run_id, actor=caller.actor, reason=change.reason)
    return views.RunView.model_validate(operator.find_run(readings.store, run_id))


class Move(Change):
    """Where a run goes in the queue."""

    to: Literal["first", "last"]


@router.post("/runs/{run_id}/move")
def move_run(
    run_id: RunId, move: Move, readings: ReadingsHere, caller: CallerHere
) -> views.RunView:
    """Let the queued run start before all others, or after them."""
    operator.move_run(
        readings.store, run_id, first=move.to == "first", actor=caller.actor, reason=move.reason
    )
    return views.RunView.model_validate(operator.find_run(readings.store, run_id))
