"""The application: its routes, what they share, and the gate before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer

import genesis_fp16
from genesis_fp16.api import problems, sign_in
from genesis_fp16.api.access import Gate, Sessions
from genesis_fp16.api.page import ErrorPages, add_page
from genesis_fp16.api.readings import Readings
from genesis_fp16.api.routes import (
    agents,
    events,
    lab_reports,
    models,
    pauses,
    precision,
    runs,
    service,
)
from genesis_fp16.api.streams import StateFeed, Streams
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.system.tokens import Tokens

THREADS = 8  # that read the store at the same time
_TOKEN = HTTPBearer(  # for the document alone: the gate has checked it
    scheme_name="token",
    description="Of GENESIS_API_TOKEN or GENESIS_API_TOKEN_FILE; the Unix socket needs none.",
    auto_error=False,
)
_DESCRIPTION = """Everything that `genesis-fp16` shows and changes, for programs.

Times are Unix seconds. A change names who made it in the audit trail. An error is a `Problem`:
what is wrong, where, and the remedy."""


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The document, with the form of an error, which no endpoint returns by itself."""
        document = super().openapi()
        schemas = document["components"]["schemas"]
        schemas.setdefault("Problem", problems.Problem.model_json_schema())
        return document


def make_app(settings: Settings, store: Store, tokens: Tokens) -> FastAPI:
    """Make the application.

    Args:
        settings: Settings of the daemon that serves the home.
        store: Its open store.
        tokens: Tokens accepted on TCP.
    """
    app = _App(
        title="genesis-fp16",
        version=genesis_fp16.__version__,
        description=_DESCRIPTION,
        docs_url=None,  # would load scripts of another site
        redoc_url=None,
        lifespan=_live,
        responses=problems.RESPONSES,
    )
    sessions = Sessions(tokens)
    app.state.readings = Readings(settings, store)
    app.state.sessions, app.state.streams = sessions, Streams()
    problems.install(app)
    rooms = (agents, runs, models, precision, pauses, lab_reports, service, events)
    for room in rooms:
        app.include_router(room.router, prefix="/api", dependencies=[Security(_TOKEN)])
    app.include_router(sign_in.router)
    add_page(app)
    app.add_middleware(Gate, settings=settings, tokens=tokens, sessions=sessions)
    app.add_middleware(ErrorPages)
    return app


@asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    feed = app.state.feed = StateFeed(app.state.readings)
    yield
    await feed.close()
