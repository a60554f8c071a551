"""Streams of server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from genesis_fp16.api.routes.parameters import ReadingsHere, RunId
from genesis_fp16.api.streams import StateFeed, Streams, follow_run, parse_place
from genesis_fp16.daemon import operator

router = APIRouter(tags=["streams"])
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
LastEventId = Annotated[str | None, Header(max_length=64)]
After = Annotated[
    str | None,
    Query(max_length=64, description="The same as Last-Event-ID, which a new stream cannot send."),
]


@router.get("/runs/{run_id}/events", response_class=StreamingResponse, responses=_STREAM)
async def follow_events_of_run(
    run_id: RunId,
    request: Request,
    readings: ReadingsHere,
    last_event_id: LastEventId = None,
    after: After = None,
) -> StreamingResponse:
    """All events of the run so far, then each as it happens; `end` when the run has ended.

    The id of an event names the place behind it: from there on the stream goes on after a break.
    """
    place = parse_place(last_event_id or after)
    await run_in_threadpool(operator.find_run, readings.store, run_id)
    return _streams(request).answer(_listener(request), follow_run(readings, run_id, place))


@router.get("/events", response_class=StreamingResponse, responses=_STREAM)
async def follow_states(
    request: Request, last_event_id: LastEventId = None, after: After = None
) -> StreamingResponse:
    """Changes of states: `run`, `guard`, `change` (by hand) and `daemon`.

    `reset` says that changes may have been missed: read again what is shown.
    """
    feed: StateFeed = request.app.state.feed
    return _streams(request).answer(_listener(request), feed.listen(last_event_id or after))


def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


def _listener(request: Request) -> str:
    return str(request.scope["state"].get("listener", "tcp"))
