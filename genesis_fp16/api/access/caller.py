"""The one who sends a request, for the audit trail."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from genesis_fp16.api.access.sessions import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who sends a request.

    Attributes:
        actor: ``api:NAME`` of a token, or of the account behind the Unix socket; ``page:NAME`` of
            the token that a browser signed in with.
        session: The browser's session; None without one.
    """

    actor: str
    session: Session | None = None


def caller_of(request: Request) -> Caller:
    """Who sends *request*; the gate has let it in."""
    caller = request.scope["state"]["caller"]
    assert isinstance(caller, Caller)  # noqa: S101  # set by the gate for every request
    return caller
