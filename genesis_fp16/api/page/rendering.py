"""Templates, and the headers with which a page is answered."""

from __future__ import annotations

import time
from pathlib import Path

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from genesis_fp16.api.page import formatting, shown
from genesis_fp16.domain.moments import duration

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    # A form that is sent without any referrer has the origin "null", which the gate refuses.
    "Referrer-Policy": "same-origin",
}
_DONE = {
    "queued": "The run is queued; it starts when a slot is free.",
    "moved": "The run is at the front of the queue.",
    "cancelling": "The run will be cancelled: its worker writes a checkpoint and stops.",
    "precision": "The precision is set. A run on this machine follows within two seconds, a job "
    "elsewhere within five.",
    "precision-next": "The precision is set for runs that begin from now on.",
    "cleared": "The override is cleared.",
    "not-set": "No override was in force.",
    "probation": "The rollback has ended: half precision is tried again, on probation.",
    "not-tripped": "The guard had not tripped.",
    "model": "The earlier model is in use.",
    "model-kept": "The guard leaves this model in use.",
    "paused": "Paused: no run starts until it is resumed.",
    "resumed": "Resumed.",
    "not-paused": "It was not paused.",
}

_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
)
_environment.globals |= {
    name: getattr(formatting, name)
    for name in (
        *("clock", "count", "iso", "number", "power", "relative", "size", "tone", "words"),
    )
}
_environment.globals["duration"] = duration
_environment.globals |= {name: getattr(shown, name) for name in ("subject_url", "why")}


def render(
    request: Request, template: str, *, status: int = 200, **context: object
) -> HTMLResponse:
    """Render *template* for the sender of *request*; every value is escaped.

    *context* may name the entry of the navigation that is current, as ``here``.
    """
    caller = request.scope["state"].get("caller")
    session = None if caller is None else caller.session
    text = _environment.get_template(f"{template}.html.j2").render(
        {
            "here": None,
            "request": request,
            "caller": caller,
            "csrf": lambda: _hidden("csrf", "" if session is None else session.csrf),
            "done": _DONE.get(request.query_params.get("done", "")),
            "now": time.time(),
            "self_url": _own_address(request),
            **context,
        }
    )
    return HTMLResponse(text, status, headers=_HEADERS)


def go_to(path: str, done: str) -> RedirectResponse:
    """Have the browser load the page at *path*, which then says what was *done*."""
    return RedirectResponse(f"{path}?done={done}", 303)


def _hidden(name: str, value: str) -> Markup:
    return Markup('<input type="hidden" name="{}" value="{}">').format(name, value)


def _own_address(request: Request) -> str:
    """Path and query of *request*, but not what was done before."""
    kept = request.url.remove_query_params("done")
    path = "/" + kept.path.lstrip("/")  # two slashes would begin the name of another host
    return path + (f"?{kept.query}" if kept.query else "")
