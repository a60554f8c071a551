"""Errors as the predictor answers them: what is wrong, where, and the remedy (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from infrastructure.events.plain_text import plain

MEDIA_TYPE = "application/problem+json"
_LONGEST_DETAIL = 600


class ProblemError(Exception):
    """A request is refused with *status*.

    Args:
        status: Status of the answer.
        detail: What is wrong, where, and the remedy.
        field: Path of the field at fault, such as ``observation.speed``; empty for none.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.field, self.headers = status, field, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": plain(str(self), _LONGEST_DETAIL),
        }
        return body | ({"field": plain(self.field, 200)} if self.field else {})


def wrong(field: str, detail: str) -> ProblemError:
    """The request's *field* is missing or wrong."""
    return ProblemError(422, f"{field}: {detail}", field=field)
