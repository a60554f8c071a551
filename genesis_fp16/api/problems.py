"""Errors as the API answers them: what is wrong, where, and the remedy (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from genesis_fp16.api.readings.run_files import NoLogError
from genesis_fp16.daemon.operator import (
    AgentNotReadyError,
    RunEndedError,
    RunNotQueuedError,
    UnknownNameError,
)
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.reason import ReasonMissingError
from genesis_fp16.plugins.model_versions import ModelVersionError
from genesis_fp16.settings import SettingsError
from genesis_fp16.store import StoreError
from genesis_fp16.store.pauses import AgentPausedError
from infrastructure.events.plain_text import plain

MEDIA_TYPE = "application/problem+json"
_MOST_ERRORS = 20

log = structlog.get_logger()


class Problem(BaseModel):
    """An error.

    Attributes:
        title: The status in words.
        detail: What is wrong, where, and the remedy.
        errors: Each wrong part of the request, as ``where: what``; empty for other errors.
    """

    title: str
    status: int
    detail: str
    errors: list[str] = []


RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {
        "description": HTTPStatus(code).phrase,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for code in (400, 401, 403, 404, 408, 409, 413, 415, 421, 422, 429, 500, 503)
}
_STATUS: dict[type[GenesisError], int] = {
    UnknownNameError: 404,
    NoLogError: 404,
    ReasonMissingError: 422,
    RunEndedError: 409,
    RunNotQueuedError: 409,
    AgentNotReadyError: 409,
    AgentPausedError: 409,
    ModelVersionError: 409,
    SettingsError: 503,
    StoreError: 503,
}


class RefusalError(Exception):
    """The request is refused with *status*; *detail* says why and what to do."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


def answer(
    status: int,
    detail: str,
    *,
    errors: list[str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The response for a problem."""
    problem = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=plain(detail), errors=errors or []
    )
    return JSONResponse(problem.model_dump(), status, headers=headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Have *app* answer every error that it knows with a `Problem`; see also `unexpected`."""
    app.add_exception_handler(RefusalError, _refusal)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _wrong_request)
    app.add_exception_handler(GenesisError, _ours)
    app.add_exception_handler(SQLAlchemyError, _store)


def _refusal(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusalError)  # noqa: S101  # registered for it
    return answer(error.status, error.detail, headers=error.headers)


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for it
    path = plain(request.url.path, 200)
    details = {
        404: f"nothing is at {path}; the page is at /, the API is described at /openapi.json",
        405: f"{request.method} is not possible at {path}",
    }
    detail = details.get(error.status_code, str(error.detail))
    return answer(error.status_code, detail, headers=error.headers)


def _wrong_request(_request: Request, error: Exception) -> JSONResponse:
    """Name each wrong part, but repeat no value: one may be secret."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  # registered for it
    errors = [
        f"{'.'.join(plain(str(part), 80) for part in item['loc'])}: {plain(str(item['msg']), 300)}"
        for item in list(error.errors())[:_MOST_ERRORS]
    ]
    return answer(422, "the request is wrong: correct what errors names", errors=errors)


def _ours(_request: Request, error: Exception) -> JSONResponse:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return answer(status, str(error))


def _store(_request: Request, error: Exception) -> JSONResponse:
    log.error("api_store_failed", error=str(getattr(error, "orig", None) or type(error).__name__))
    return answer(503, "the store fails: see the daemon's log, or genesis-fp16 doctor")


def unexpected(error: Exception) -> JSONResponse:
    """The response for an error that nobody has foreseen, which is logged."""
    log.error("api_request_failed", error=repr(error), exc_info=error)
    return answer(500, f"{type(error).__name__}: see the daemon's log, and report it")
