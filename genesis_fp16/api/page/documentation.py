"""The documentation under ``/docs``: the site that ``make docs`` builds beside this module."""

from __future__ import annotations

import base64
import hashlib
import re
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from genesis_fp16.api.problems import RefusalError
from infrastructure.events.plain_text import plain

SITE = Path(__file__).with_name("site")
_LONGEST_SHOWN = 200  # characters of a path
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class _Site(StaticFiles):
    """Files of the site, which may run the scripts that it was built with and no others."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True)
        scripts = _INLINE_SCRIPT.findall((folder / "index.html").read_text())
        hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
        allowed = " ".join(["'self'", *sorted(f"'sha256-{digest}'" for digest in hashes)])
        self._policy = (
            f"default-src 'none'; script-src {allowed}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'"
        )

    async def get_response(self, path: str, scope: Scope) -> Response:
        """See Starlette.

        Raises:
            RefusalError: There is no such page.
        """
        try:
            response = await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != HTTPStatus.NOT_FOUND:
                raise
            named = plain(path, _LONGEST_SHOWN)
            detail = f"the documentation has no page {named}; its first page is /docs/"
            raise RefusalError(404, detail) from error
        response.headers["Content-Security-Policy"] = self._policy
        return response


def add_documentation(app: FastAPI, folder: Path = SITE) -> None:
    """Serve the site in *folder* under ``/docs``; without one, answer how to build it."""
    if (folder / "index.html").is_file():
        app.mount("/docs", _Site(folder))
        return

    @app.get("/docs/{path:path}", include_in_schema=False)
    def missing() -> None:
        raise RefusalError(
            404,
            "the documentation is not built: run `make docs` in the checkout, restart the daemon; "
            "if you install from a checkout, run it there before you install",
        )
