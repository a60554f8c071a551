"""Signing in and out with a browser: a token becomes a session, kept in a cookie."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from genesis_fp16.api.access import SESSION_COOKIE, Sessions
from genesis_fp16.api.access.gate import SIGN_IN
from genesis_fp16.api.access.sessions import SESSION_SECONDS
from genesis_fp16.api.problems import RefusalError

router = APIRouter(include_in_schema=False)


@router.post(SIGN_IN)
def sign_in(request: Request) -> Response:
    """Begin a session with the form's field ``token``, and go to the page.

    After a wrong token the browser goes back to the form, ``?failed`` or ``?wait=SECONDS``.
    """
    state = request.scope["state"]
    try:
        token = state["sign_in"](request.scope, state["form"].get("token", "").strip())
    except RefusalError as refusal:
        wait = refusal.headers.get("Retry-After")
        return _go_to(f"{SIGN_IN}?wait={wait}" if wait else f"{SIGN_IN}?failed=1")
    session = _sessions(request).begin(token)
    response = _go_to("/")
    response.set_cookie(
        SESSION_COOKIE,
        session.id,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.headers.get("x-forwarded-proto") == "https",
    )
    return response


@router.post("/sign-out")
def sign_out(request: Request) -> Response:
    """End the session."""
    caller = request.scope["state"]["caller"]
    if caller is not None and caller.session is not None:
        _sessions(request).end(caller.session)
    response = _go_to(SIGN_IN)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response


def _go_to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)


def _sessions(request: Request) -> Sessions:
    sessions = request.app.state.sessions
    assert isinstance(sessions, Sessions)  # noqa: S101  # set by make_app
    return sessions
