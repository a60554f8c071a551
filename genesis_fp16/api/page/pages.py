"""The pages that only show something."""

from __future__ import annotations

import math
import time
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from genesis_fp16.api.page import timeline
from genesis_fp16.api.page.comparison import Side, compare_results, compare_settings
from genesis_fp16.api.page.rendering import render
from genesis_fp16.api.page.shown import compare, is_active, show_agent, sort_evidence
from genesis_fp16.api.problems import RefusalError
from genesis_fp16.api.readings import Readings, lab_reports
from genesis_fp16.api.readings.run_files import NoLogError
from genesis_fp16.api.routes.lab_reports import lab_report
from genesis_fp16.api.routes.parameters import RUN_NAME, AgentName, ReadingsHere, RunId
from genesis_fp16.api.views import LogTail, RunDetail
from genesis_fp16.daemon.models import list_models
from genesis_fp16.daemon.operator import find_run
from genesis_fp16.domain.run import RunState
from genesis_fp16.guard.evidence import EvidenceError, read_evidence
from genesis_fp16.runs.run_folder import RUN_ID

AGENTS_PER_PAGE, RUNS_PER_PAGE, RUNS_OF_AGENT = 50, 50, 12
POINTS_IN_TABLE, POINTS_READ = 40, 400
LOG_BYTES = 8 << 10
MISMATCHES_SHOWN = 8
QUEUE_SHOWN = 10
RUNS_TO_COMPARE = 30

router = APIRouter(include_in_schema=False)


@router.get("/")
def show_agents(
    request: Request,
    readings: ReadingsHere,
    query: Annotated[str, Query(max_length=40)] = "",
    show: str = "",
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
) -> Response:
    """All agents, disabled ones last; with *query* those whose name contains it."""
    known = sorted(readings.agents_in_brief(), key=lambda agent: agent.name)
    found = [agent for agent in known if query.strip().lower() in agent.name]
    shown = [agent for agent in found if agent.state != "disabled"]
    disabled = [] if show else [agent.name for agent in found if agent.state == "disabled"]
    if show == "attention":
        shown = [agent for agent in shown if agent.needs_attention]
    elif show == "running":
        shown = [agent for agent in shown if agent.runs]
    pages = max(1, math.ceil(len(shown) / AGENTS_PER_PAGE))
    begin = (min(page, pages) - 1) * AGENTS_PER_PAGE
    listed = [agent.name for agent in shown[begin : begin + AGENTS_PER_PAGE]]
    of_name = {view.name: show_agent(view) for view in readings.agents({*listed, *disabled})}
    return render(
        request,
        "agents",
        here="/",
        agents=[of_name[name] for name in listed if name in of_name],
        disabled=[of_name[name] for name in disabled if name in of_name],
        health=readings.health(),
        of_all=readings.precision_of_all(),
        pause=next((pause for pause in readings.pauses() if pause.agent is None), None),
        total=len(known),
        troubled=sum(agent.needs_attention for agent in known),
        query=query,
        show=show,
        page=min(page, pages),
        pages=pages,
        page_url=lambda number: request.url.include_query_params(page=number).query,
    )


@router.get("/agents/{name}")
def show_one_agent(request: Request, name: AgentName, readings: ReadingsHere) -> Response:
    """One agent: what it does, its history, and what can be done."""
    view = readings.agent(name)
    runs = readings.runs(name, limit=RUNS_OF_AGENT)
    unfinished = [run for run in runs if is_active(run) or run.state is RunState.QUEUED]
    return render(
        request,
        "agent",
        here="/",
        shown=show_agent(view),
        guard=readings.guard(name),
        runs=runs,
        running=unfinished[-1] if unfinished else None,
        own_overrides=[override for override in view.precision.overrides if override.agent == name],
        own_pause=next((pause for pause in view.pauses if pause.agent == name), None),
        compared=compare(readings.outcomes(name)),
        models=list_models(readings.settings, name, verify=False),
        model_guard=readings.model_guard(name),
        mismatch=readings.mismatches(name)[-MISMATCHES_SHOWN:][::-1],
    )


@router.get("/agents/{name}/guard")
def show_guard(
    request: Request, name: AgentName, readings: ReadingsHere, evidence: str = ""
) -> Response:
    """The guard's decisions on an agent, and one bundle of evidence: by default the newest."""
    guard = readings.guard(name)
    history = readings.store.guard.history(name, limit=50)
    chosen = next(
        (
            decision
            for decision in history
            if decision.evidence and evidence in ("", decision.evidence.rpartition("/")[2])
        ),
        None,
    )
    if evidence and chosen is None:
        raise RefusalError(
            404,
            f"none of the last decisions on {name} has this evidence: choose one of the list at "
            f"/agents/{name}/guard",
        )
    bundle, trouble = None, ""
    if chosen is not None:
        try:
            recorded = read_evidence(readings.home, chosen)
            bundle = recorded.model_dump(mode="json", exclude_unset=True) if recorded else None
        except EvidenceError as error:
            trouble = str(error)
    return render(
        request,
        "guard",
        here="/",
        agent=name,
        guard=guard,
        chosen=chosen,
        trouble=trouble,
        evidence=sort_evidence(bundle),
    )


@router.get("/runs")
def show_runs(
    request: Request,
    readings: ReadingsHere,
    agent: str = "",
    before: Annotated[str | None, Query(pattern=f"^{RUN_ID.pattern}$")] = None,
) -> Response:
    """The newest runs, or those that follow the run *before* in the list."""
    runs = readings.runs(agent or None, before=before, limit=RUNS_PER_PAGE + 1)
    queue = [] if before else readings.queue()
    queue = [waiting for waiting in queue if agent in ("", waiting.run.agent)]
    return render(
        request,
        "runs",
        here="/runs",
        queue=queue[:QUEUE_SHOWN],
        queued=len(queue),
        runs=runs[:RUNS_PER_PAGE],
        agent=agent,
        more=len(runs) > RUNS_PER_PAGE,
    )


@router.get("/timeline")
def show_timeline(
    request: Request,
    readings: ReadingsHere,
    query: Annotated[str, Query(max_length=40)] = "",
    hours: Annotated[int, Query(ge=1, le=8760)] = 24,
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
) -> Response:
    """Runs and rollbacks of all agents that had any in the last *hours*."""
    until = time.time()
    since = until - 3600.0 * hours
    read = readings.store.timeline
    rollbacks = read.rollbacks(since, until)
    names = read.agents(since, until) | {one.agent for one in rollbacks if one.agent}
    found = sorted(name for name in names if query.strip().lower() in name)
    pages = max(1, math.ceil(len(found) / AGENTS_PER_PAGE))
    begin = (min(page, pages) - 1) * AGENTS_PER_PAGE
    shown = found[begin : begin + AGENTS_PER_PAGE]
    return render(
        request,
        "timeline",
        here="/timeline",
        lines=timeline.draw(shown, read.runs(since, until, shown), rollbacks, since, until),
        ticks=timeline.ticks(since, until),
        since=since,
        until=until,
        query=query,
        hours=hours,
        page=min(page, pages),
        pages=pages,
        page_url=lambda number: request.url.include_query_params(page=number).query,
    )


@router.get("/compare")
def compare_runs(
    request: Request,
    readings: ReadingsHere,
    first: Annotated[str, Query(pattern=RUN_NAME)],
    second: Annotated[str, Query(pattern=RUN_NAME)],
) -> Response:
    """Two runs side by side."""
    sides = [_side(readings, find_run(readings.store, name).id) for name in (first, second)]
    return render(
        request,
        "compare",
        here="/runs",
        first=sides[0].run,
        second=sides[1].run,
        results=compare_results(*sides),
        settings=compare_settings(*sides),
    )


def _side(readings: Readings, run_id: str) -> Side:
    run = readings.run(run_id)
    kept = readings.models(run.agent).versions if run.published else []
    model = next((version for version in kept if version.run_id == run_id), None)
    return Side(run=run, spec=readings.spec(run_id), model=model)


@router.get("/runs/{run_id}")
def show_run(
    request: Request,
    run_id: RunId,
    readings: ReadingsHere,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Response:
    """One run: its state, curves, attempts, and the end of the log of one *attempt*."""
    run = readings.run(run_id)
    evaluations = [view.evaluation for view in run.attempts if view.evaluation]
    return render(
        request,
        "run",
        here="/runs",
        run=run,
        active=is_active(run) or run.state is RunState.QUEUED,
        points=readings.curve(run_id, POINTS_READ).points[-POINTS_IN_TABLE:],
        changes=[change for view in run.attempts for change in view.precision],
        data_problems=list(
            dict.fromkeys(one for view in run.attempts for one in view.data_problems)
        ),
        evaluation=evaluations[-1] if evaluations else None,
        log=_log(readings, run, attempt),
        others=[
            other
            for other in readings.store.runs(run.agent, limit=RUNS_TO_COMPARE)
            if other.id != run_id
        ],
    )


def _log(readings: Readings, run: RunDetail, attempt: int | None) -> LogTail | None:
    """The end of the log of *attempt*, by default of the newest that has one."""
    with_log = [view.number for view in run.attempts if view.has_log]
    number = attempt if attempt is not None else max(with_log, default=None)
    if number is None:
        return None
    try:
        return readings.log_tail(run.id, number, LOG_BYTES)
    except NoLogError:
        return None


@router.get("/audit")
def show_audit(
    request: Request, readings: ReadingsHere, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> Response:
    """The newest changes by hand."""
    changes = readings.audit(limit)
    more = len(changes) == limit < 500
    return render(request, "audit", here="/audit", changes=changes, more=more, limit=limit)


@router.get("/reports")
def show_reports(request: Request, readings: ReadingsHere) -> Response:
    """The reports of the precision lab in the home."""
    return render(
        request,
        "reports",
        here="/reports",
        reports=lab_reports.find(readings.home),
        folder=str(readings.home / lab_reports.FOLDER),
    )


@router.get("/reports/{name}")
def show_report(name: str, readings: ReadingsHere) -> Response:
    """One report, as the lab wrote it."""
    return lab_report(readings, name)


@router.get("/sign-in")
def show_sign_in(request: Request, failed: bool = False, wait: int = 0) -> Response:
    """The form for a token."""
    if request.scope["state"]["caller"] is not None:
        return RedirectResponse("/", 303)
    problem = "The token is wrong." if failed else ""
    if wait:
        problem = f"Too many wrong tokens: wait {max(1, min(wait, 3600))} seconds."
    return render(request, "sign_in", problem=problem)
