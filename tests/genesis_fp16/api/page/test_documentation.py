"""What the page answers under ``/docs`` where the site was not built."""

import asyncio
from pathlib import Path

from fastapi import FastAPI

from genesis_fp16.api import problems
from genesis_fp16.api.page.documentation import add_documentation


def test_a_missing_site_is_answered_with_the_remedy(tmp_path: Path) -> None:
    app = FastAPI()
    problems.install(app)
    add_documentation(app, tmp_path)
    sent = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/docs/how-to/runbook.html", "headers": []}
    asyncio.run(app(scope | {"query_string": b"", "root_path": ""}, receive, send))
    assert sent[0]["status"] == 404
    assert "make docs" in sent[1]["body"].decode()
