"""What the page answers under ``/docs`` where the site or one of its pages is missing."""

import asyncio
from pathlib import Path

import pytest
from fastapi import FastAPI

from genesis_fp16.api import problems
from genesis_fp16.api.page import ErrorPages
from genesis_fp16.api.page.documentation import add_documentation


def ask(folder: Path, path: str, accept: str = "*/*") -> tuple[int, str]:
    """Status and body that a site in *folder* answers."""
    app = FastAPI()
    problems.install(app)
    add_documentation(app, folder)
    sent: list[dict] = []

    async def receive() -> dict:
        return await asyncio.Event().wait() or {}  # the client stays and sends nothing

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(b"host", b"localhost"), (b"accept", accept.encode())],
        "query_string": b"",
        "root_path": "",
        "state": {},
    }
    asyncio.run(ErrorPages(app)(scope, receive, send))
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent).decode()


def test_a_missing_site_is_answered_with_the_remedy(tmp_path: Path) -> None:
    status, body = ask(tmp_path, "/docs/how-to/runbook.html")
    assert status == 404
    assert "make docs" in body


@pytest.mark.parametrize("path", ["/docs/how-to/", "/docs/how-to/opperating.html"])
def test_a_mistyped_page_leads_to_the_first_one(tmp_path: Path, path: str) -> None:
    (tmp_path / "index.html").write_text("<h1>Welcome</h1>")
    (tmp_path / "how-to").mkdir()
    assert ask(tmp_path, "/docs/") == (200, "<h1>Welcome</h1>")
    status, page = ask(tmp_path, path, "text/html,*/*")
    assert (status, '<a href="/docs/">Back</a>' in page) == (404, True)
    assert path.removeprefix("/docs/").rstrip("/") in page
    status, problem = ask(tmp_path, path)
    assert (status, "its first page is /docs/" in problem) == (404, True)
