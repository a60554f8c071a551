"""The forms of the page: each changes one thing, then loads the page that shows it."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from genesis_fp16.api.page.rendering import go_to
from genesis_fp16.api.problems import RefusalError
from genesis_fp16.api.readings import Readings
from genesis_fp16.api.routes.parameters import AgentName, CallerHere, ReadingsHere, RunId
from genesis_fp16.api.routes.precision import end_rollback
from genesis_fp16.daemon import operator
from genesis_fp16.daemon.models import keep_in_use, roll_back
from genesis_fp16.domain.pause import Pause
from genesis_fp16.domain.precision import Override
from genesis_fp16.domain.reason import one_line
from infrastructure.events.precision_state import WISHES

_MOST_HOURS = 24 * 366
_WITHOUT_REASON = "asked for on the page"

router = APIRouter(include_in_schema=False)


def _field(request: Request, name: str) -> str:
    form: dict[str, str] = request.scope["state"]["form"]
    return form.get(name, "")


def _reason(request: Request) -> str:
    return one_line(_field(request, "reason"))


@router.post("/agents/{name}/run")
def run_now(
    request: Request, name: AgentName, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Queue a run of the agent."""
    reason = _field(request, "reason").strip() or _WITHOUT_REASON
    run = operator.request_run(
        readings.settings, readings.store, name, actor=caller.actor, reason=one_line(reason)
    )
    return go_to(f"/runs/{run.id}", "queued")


@router.post("/runs/{run_id}/cancel")
def cancel_run(
    request: Request, run_id: RunId, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Cancel the run."""
    reason = _reason(request)
    operator.cancel_run(readings.store, run_id, actor=caller.actor, reason=reason)
    return go_to(f"/runs/{run_id}", "cancelling")


@router.post("/runs/{run_id}/move")
def move_run(
    request: Request, run_id: RunId, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Let the queued run start before all others."""
    reason = _reason(request)
    operator.move_run(readings.store, run_id, first=True, actor=caller.actor, reason=reason)
    return go_to(f"/runs/{run_id}", "moved")


@router.post("/precision")
def set_precision_of_all(request: Request, readings: ReadingsHere, caller: CallerHere) -> Response:
    """Override the precision of all agents."""
    return go_to("/", _set_precision(request, readings, None, caller.actor))


@router.post("/agents/{name}/precision")
def set_precision(
    request: Request, name: AgentName, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Override the precision of one agent."""
    operator.check_agent(name, readings.home)
    return go_to(f"/agents/{name}", _set_precision(request, readings, name, caller.actor))


def _set_precision(request: Request, readings: Readings, agent: str | None, actor: str) -> str:
    """Put the override of the form in force; what was done, for `go_to`."""
    precision = next((wish for wish in WISHES if wish == _field(request, "precision")), None)
    hours = _field(request, "hours")
    if precision is None:
        raise RefusalError(422, f"choose a precision: one of {', '.join(WISHES)}")
    known = len(hours) <= 4 and hours.isascii() and hours.isdigit()
    if hours and not (known and 1 <= int(hours) <= _MOST_HOURS):
        raise RefusalError(422, f"choose for how long: 1 to {_MOST_HOURS} hours, or no end")
    now, next_run = time.time(), _field(request, "next_run") == "true"
    readings.store.overrides.set(
        Override(
            agent=agent,
            precision=precision,
            reason=_reason(request),
            actor=actor,
            created_at=now,
            expires_at=now + int(hours) * 3600.0 if hours else None,
            next_run=next_run,
        )
    )
    return "precision-next" if next_run else "precision"


@router.post("/precision/clear")
def clear_precision_of_all(
    request: Request, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Withdraw the override for all agents."""
    reason = _reason(request)
    cleared = readings.store.overrides.clear(None, actor=caller.actor, reason=reason)
    return go_to("/", "cleared" if cleared else "not-set")


@router.post("/agents/{name}/precision/clear")
def clear_precision(
    request: Request, name: AgentName, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Withdraw the override of one agent."""
    readings.check_agent(name)
    reason = _reason(request)
    cleared = readings.store.overrides.clear(name, actor=caller.actor, reason=reason)
    return go_to(f"/agents/{name}", "cleared" if cleared else "not-set")


@router.post("/agents/{name}/guard/clear")
def clear_guard(
    request: Request, name: AgentName, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """End the guard's rollback of the agent."""
    cleared = end_rollback(readings, name, caller.actor, _reason(request))
    return go_to(f"/agents/{name}", "probation" if cleared else "not-tripped")


@router.post("/agents/{name}/models/rollback")
def roll_back_model(
    request: Request, name: AgentName, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Make an earlier version the agent's model in use."""
    readings.check_agent(name)
    roll_back(
        readings.settings,
        readings.store,
        name,
        _field(request, "version"),
        actor=caller.actor,
        reason=_reason(request),
    )
    return go_to(f"/agents/{name}", "model")


@router.post("/agents/{name}/models/keep")
def keep_model(
    request: Request, name: AgentName, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Let the guard leave the agent's model in use alone."""
    readings.check_agent(name)
    keep_in_use(
        readings.settings, readings.store, name, actor=caller.actor, reason=_reason(request)
    )
    return go_to(f"/agents/{name}", "model-kept")


@router.post("/pause")
def pause_all(request: Request, readings: ReadingsHere, caller: CallerHere) -> Response:
    """Keep all agents from starting runs."""
    _pause(request, readings, None, caller.actor)
    return go_to("/", "paused")


@router.post("/agents/{name}/pause")
def pause(
    request: Request, name: AgentName, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """Keep one agent from starting runs."""
    operator.check_agent(name, readings.home)
    _pause(request, readings, name, caller.actor)
    return go_to(f"/agents/{name}", "paused")


def _pause(request: Request, readings: Readings, agent: str | None, actor: str) -> None:
    readings.store.pauses.begin(
        Pause(
            agent=agent,
            reason=_reason(request),
            actor=actor,
            created_at=time.time(),
            stops_runs=_field(request, "stop") == "true",
        )
    )


@router.post("/resume")
def resume_all(request: Request, readings: ReadingsHere, caller: CallerHere) -> Response:
    """End the pause of all agents; single agents may be paused by themselves."""
    ended = readings.store.pauses.end(None, actor=caller.actor, reason=_reason(request))
    return go_to("/", "resumed" if ended else "not-paused")


@router.post("/agents/{name}/resume")
def resume(
    request: Request, name: AgentName, readings: ReadingsHere, caller: CallerHere
) -> Response:
    """End the pause of one agent."""
    ended = readings.store.pauses.end(name, actor=caller.actor, reason=_reason(request))
    return go_to(f"/agents/{name}", "resumed" if ended else "not-paused")
