"""The gate before every route: limits, host, origin, who asks, and protection of sessions.

Nothing of a request is logged but its client's address: a header, a body, or a URL in which
somebody has put a token by mistake, may be secret.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, unquote_to_bytes

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genesis_fp16.api.access.caller import Caller
from genesis_fp16.api.access.sessions import (
    SESSION_COOKIE,
    FailedSignIns,
    Sessions,
    csrf_matches,
)
from genesis_fp16.api.problems import RefusalError, answer, unexpected
from genesis_fp16.settings import Settings
from genesis_fp16.store.errors import user_name
from genesis_fp16.system.tokens import TOKEN, NamedToken, Tokens
from infrastructure.events.plain_text import plain

MAX_BODY_BYTES = 1 << 16
BODY_SECONDS = 10.0
MAX_FIELDS = 50  # of a form
_LONGEST_SHOWN = 80  # characters of a header
SIGN_IN = "/sign-in"
_PUBLIC = ("/static/", "/docs")  # files of the page and its documentation, the same for all
_SAFE = ("GET", "HEAD", "OPTIONS")
_FORM = "application/x-www-form-urlencoded"
_NAMES_OF_TOKENS = {
    *("token", "access_token", "auth_token", "api_token", "api_key", "apikey", "key"),
    *("authorization", "auth", "bearer", "password", "secret"),
}
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'; object-src 'none'",
    ),
)

log = structlog.get_logger()


class Gate:
    """Lets a request through to *app* if its sender may ask.

    The route finds the `Caller` in ``scope["state"]["caller"]``, and the fields of a form in
    ``scope["state"]["form"]``.

    Args:
        app: What answers.
        settings: Settings with the names of this host.
        tokens: Tokens accepted on TCP.
        sessions: Sessions of browsers.
    """

    def __init__(
        self, app: ASGIApp, *, settings: Settings, tokens: Tokens, sessions: Sessions
    ) -> None:
        self._app, self._tokens, self._sessions = app, tokens, sessions
        self._failures, self._tried_in_urls = FailedSignIns(), FailedSignIns()
        named = settings.api_allowed_hosts.split(",")
        names = {settings.api_host, "localhost", *map(str.strip, named)}
        self._names = {name.lower().rstrip(".") for name in names if name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets: uvicorn closes the connection
        send = _with_headers(send)
        request = _Request(scope)
        try:
            self._check_address(request)
            state = scope.setdefault("state", {})
            body = await _read_body(request, receive)
            form = _read_form(request, body)
            state["form"], state["sign_in"] = form, self._sign_in
            try:
                caller = state["caller"] = self._find_caller(request, form)
            except RefusalError:
                self._check_url(request, None)
                raise
            self._check_url(request, caller)
        except RefusalError as refusal:
            response = answer(refusal.status, refusal.detail, headers=refusal.headers)
            await response(scope, receive, send)
            return
        await self._pass_on(scope, _replay(body, receive), send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer; an error in it is answered with our headers, too."""
        begun = False

        async def note_begin(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, note_begin)
        except Exception as error:  # of any kind: what answers has a bug
            if begun:
                raise
            await unexpected(error)(scope, receive, send)

    def _check_address(self, request: _Request) -> None:
        """Refuse another site's requests."""
        host = request.only("host")
        if not self._is_ours(host):
            raise RefusalError(
                421,
                "this service is not known by the name in the Host header: use localhost or its "
                "address, or add the name to GENESIS_API_ALLOWED_HOSTS",
            )
        origin = request.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise RefusalError(
                403,
                f"the request's Origin, {plain(origin, _LONGEST_SHOWN)}, is not the Host header, "
                f"{plain(host, _LONGEST_SHOWN)}: open the page by one name, and let a proxy pass "
                "the Host header on unchanged",
            )
        site = request.get("sec-fetch-site")
        if site in ("cross-site", "same-site") and not _is_navigation(request):
            raise RefusalError(
                403,
                f"the browser says that a page of another site sent this request "
                f"(Sec-Fetch-Site: {site}): open this page itself and repeat the change there",
            )

    def _is_ours(self, host: str) -> bool:
        """Whether *host* is this service: one of its names, or any address.

        An address cannot be pointed elsewhere by a name server, as a name of an attacker can.
        """
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdigit() or (":" in name and not name.endswith("]")):
            name = host
        name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _check_url(self, request: _Request, caller: Caller | None) -> None:
        """Refuse a URL with a parameter for a token, or with a token anywhere.

        Without a *caller* few parts of URLs are compared: the answer tells which one is a token.
        """
        scope = request.scope
        url = scope["raw_path"] + b"?" + scope["query_string"]
        text = unquote_to_bytes(url.replace(b"+", b" ")).decode("latin-1")
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name.strip().lower() in _NAMES_OF_TOKENS for name, _ in pairs):
            raise _token_in_url()
        parts = {part for form in (url.decode("latin-1"), text) for part in TOKEN.findall(form)}
        parts |= {value for _, value in pairs} | set(text.replace("?", "/").split("/"))
        for part in filter(TOKEN.fullmatch, parts):
            if caller is None and self._tried_in_urls.wait_seconds(request.client) > 0:
                return
            if self._tokens.find(part) is not None:
                raise _token_in_url()
            if caller is None:
                self._tried_in_urls.add(request.client)

    def _find_caller(self, request: _Request, form: Mapping[str, str]) -> Caller | None:
        state = request.scope["state"]
        if state.get("listener") == "unix":  # only the operator may open the socket
            return Caller(actor=f"api:{user_name(state['peer_uid'])}")
        if (authorization := request.get("authorization")) is not None:
            scheme, _, offered = authorization.partition(" ")
            token = self.sign_in_with(request.client, offered if scheme.lower() == "bearer" else "")
            _check_role(request, token)
            return Caller(actor=f"api:{token.name}")
        session = self._sessions.find(request.cookie(SESSION_COOKIE))
        if session is not None:
            offered = request.get("x-csrf-token") or form.get("csrf", "")
            if request.method not in _SAFE and not csrf_matches(session, offered):
                raise RefusalError(
                    403,
                    "the change lacks the session's own proof (csrf field, or X-CSRF-Token): "
                    "load the page again",
                )
            _check_role(request, session.token)
            return Caller(actor=f"page:{session.token.name}", session=session)
        if request.path == SIGN_IN or request.path.startswith(_PUBLIC):
            return None
        headers = {"WWW-Authenticate": "Bearer"}
        if "text/html" in (request.get("accept") or ""):
            raise RefusalError(303, "sign in first", {"Location": SIGN_IN})
        raise RefusalError(
            401,
            "send a token in the header Authorization: Bearer, or sign in at /sign-in; the Unix "
            "socket control.sock in GENESIS_HOME needs none",
            headers,
        )

    def _sign_in(self, scope: Scope, offered: str) -> NamedToken:
        return self.sign_in_with(_Request(scope).client, offered)

    def sign_in_with(self, client: str, offered: str) -> NamedToken:
        """The token that *client* has *offered*.

        Raises:
            RefusalError: It is wrong, or the client has failed too often.
        """
        if (wait := self._failures.wait_seconds(client)) > 0:
            raise RefusalError(
                429,
                f"too many wrong tokens from {client}: wait {wait:.0f} s, or use the Unix socket",
                {"Retry-After": str(int(wait) + 1)},
            )
        token = self._tokens.find(offered)
        if token is None:
            self._failures.add(client)
            log.warning("api_sign_in_failed", client=client)
            raise RefusalError(
                401,
                "the token is wrong: send one of GENESIS_API_TOKEN or GENESIS_API_TOKEN_FILE in "
                "the header Authorization: Bearer",
                {"WWW-Authenticate": 'Bearer error="invalid_token"'},
            )
        return token


def _check_role(request: _Request, token: NamedToken) -> None:
    """Refuse a change by a token that may only look, or ask the predictor."""
    ends_session = request.path in (SIGN_IN, "/sign-out")
    if request.method not in _SAFE and not ends_session and token.role != "operate":
        raise RefusalError(
            403,
            f"the token {token.name} has the role {token.role}: a change needs one with the role "
            "operate in GENESIS_API_TOKEN_FILE",
        )


def _token_in_url() -> RefusalError:
    return RefusalError(
        400,
        "a token does not belong into a URL, where histories and logs keep it: send it in "
        "the header Authorization: Bearer, and replace this one",
    )


class _Request:
    """What the gate reads of a request."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method, self.path = str(scope["method"]), str(scope["path"])
        client = scope.get("client")
        self.client = str(client[0]) if client else "unknown"
        self._headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            self._headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))

    def get(self, name: str) -> str | None:
        """The header's value; the last one if it occurs twice."""
        return self._headers[name][-1] if name in self._headers else None

    def only(self, name: str) -> str:
        """The value of a header that must occur once.

        Raises:
            RefusalError: It does not.
        """
        values = self._headers.get(name, [])
        if len(values) != 1:
            raise RefusalError(400, f"send the header {name} once")
        return values[0]

    def cookie(self, name: str) -> str:
        """The cookie's value; empty without it."""
        try:
            cookie = SimpleCookie("; ".join(self._headers.get("cookie", []))).get(name)
        except CookieError:
            return ""
        return cookie.value if cookie is not None else ""


def _is_navigation(request: _Request) -> bool:
    return request.method in _SAFE and request.get("sec-fetch-mode") == "navigate"


async def _read_body(request: _Request, receive: Receive) -> bytes:
    """The whole body, within its limits.

    Raises:
        RefusalError: It is too large, too slow, or neither JSON nor a form.
    """
    too_large = RefusalError(
        413, f"the body is larger than {MAX_BODY_BYTES} bytes", {"Connection": "close"}
    )
    length = request.get("content-length")
    if length is not None and (not length.isdigit() or int(length) > MAX_BODY_BYTES):
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusalError(400, "the connection ended within the body")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_BODY_BYTES:
                    raise too_large
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise RefusalError(
            408, f"the body took longer than {BODY_SECONDS:.0f} s", {"Connection": "close"}
        ) from None
    kind = _content_type(request)
    if size and kind not in ("application/json", _FORM):
        raise RefusalError(415, f"send application/json, or {_FORM}")
    return b"".join(parts)


def _content_type(request: _Request) -> str:
    return (request.get("content-type") or "").partition(";")[0].strip().lower()


def _read_form(request: _Request, body: bytes) -> dict[str, str]:
    """Fields of a form; empty for other bodies."""
    if _content_type(request) != _FORM:
        return {}
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError as error:
        raise RefusalError(
            400, f"the form is not UTF-8, or has over {MAX_FIELDS} fields"
        ) from error
    return dict(pairs)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the application the *body* that was read, then what follows it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            added = [header for header in _HEADERS if header[0] not in present]
            if b"cache-control" not in present:
                added.append((b"cache-control", b"no-store"))
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return send_with_headers
