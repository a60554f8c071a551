"""Errors that nobody has foreseen, in the application itself."""

import asyncio
from contextlib import closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from genesis_fp16.api.app import make_app
from genesis_fp16.daemon.api_tokens import open_tokens
from genesis_fp16.settings import Settings
from tests.genesis_fp16.new_store import new_store


@pytest.mark.parametrize("accept", [b"application/json", b"text/html"])
def test_an_answer_to_an_error_of_ours_is_protected_as_others_are(
    home_settings: Settings, accept: bytes
) -> None:
    with closing(new_store(home_settings)) as store:
        app = make_app(home_settings, store, open_tokens(home_settings))

        @app.get("/breaks")
        def breaks() -> None:
            raise ZeroDivisionError("secret")

        with capture_logs() as logs:
            status, headers, body = asyncio.run(_get(app, "/breaks", accept))
    assert status == 500
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert b"frame-ancestors 'none'" in headers[b"content-security-policy"]
    assert headers[b"cache-control"] == b"no-store"
    assert b"ZeroDivisionError" in body
    assert b"secret" not in body
    assert [entry["event"] for entry in logs] == ["api_request_failed"]


async def _get(app: Any, path: str, accept: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"accept", accept)],
        "state": {"listener": "unix", "peer_uid": 0},
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], dict(sent[0]["headers"]), body
