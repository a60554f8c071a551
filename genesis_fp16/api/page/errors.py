"""Errors as pages, for browsers: what is wrong, where, and the remedy, and a way back."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genesis_fp16.api.page.rendering import render
from genesis_fp16.api.problems import MEDIA_TYPE, Problem


class ErrorPages:
    """Answers a browser that loads a page with a page where *app* answers with a `Problem`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        wants_page = scope["type"] == "http" and "text/html" in Headers(scope=scope).get(
            "accept", ""
        )
        if not wants_page:
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        content = b""

        async def send_page(message: Message) -> None:
            nonlocal start, content
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
            elif start is None:
                await send(message)
            else:
                content += message.get("body", b"")
                if not message.get("more_body"):
                    await _send_page(scope, receive, send, start, content)

        await self._app(scope, receive, send_page)


def _is_problem(message: Message) -> bool:
    kind = Headers(raw=message["headers"]).get("content-type", "")
    # A redirection has a body that nobody reads.
    return kind.startswith(MEDIA_TYPE) and message["status"] >= 400


async def _send_page(
    scope: Scope, receive: Receive, send: Send, start: Message, content: bytes
) -> None:
    request = Request(scope, receive)
    problem = Problem.model_validate_json(content)
    page = render(request, "error", status=problem.status, problem=problem, back=_back(request))
    for name, value in Headers(raw=start["headers"]).items():
        if name not in ("content-type", "content-length"):
            page.headers.setdefault(name, value)
    await page(scope, receive, send)


def _back(request: Request) -> str:
    """The page whose form was refused, if the path tells; else the first, of the docs in theirs."""
    if request.url.path.startswith("/docs/"):
        return "/docs/"
    parts = request.url.path.strip("/").split("/")
    return "/" + "/".join(parts[:2]) if request.method == "POST" and len(parts) > 2 else "/"
