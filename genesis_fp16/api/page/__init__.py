"""The page: what the API shows, for people, made on the server and complete without JavaScript.

`pages` show something, `changes` are its forms, `documentation` is the built site of ``docs/``;
templates and static files lie beside them.
"""

from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from genesis_fp16.api.page import changes, pages
from genesis_fp16.api.page.documentation import add_documentation
from genesis_fp16.api.page.errors import ErrorPages

__all__ = ["ErrorPages", "add_page"]


def add_page(app: FastAPI) -> None:
    """Add the page's routes and its static files to *app*."""
    app.include_router(pages.router)
    app.include_router(changes.router)
    add_documentation(app)
    app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
