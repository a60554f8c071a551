"""Options of the proposer ``llm``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

Temperature = Annotated[float, Field(ge=0.0, le=2.0)]


def problems_of(error: ValidationError) -> str:
    """Return what is wrong with options, in one line."""
    return "; ".join(
        f"{'.'.join(map(str, detail['loc'])) or 'options'}: {_told(detail['type'], detail['msg'])}"
        for detail in error.errors(include_url=False, include_input=False)
    )


def _told(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return f"is not an option; options are {', '.join(LLMOptions.model_fields)}"
    return "is missing" if kind == "missing" else message.removeprefix("Value error, ")


class LLMOptions(BaseModel):
    """Where the model is, and how much may be asked of it in one search.

    Attributes:
        url: Base URL of the endpoint, such as ``http://127.0.0.1:8080/v1``.
        model: Name of the model there.
        key_file: File with the key; None for none.
        key_variable: Environment variable with the key, if there is no *key_file*.
        samples: Answers to ask for in one request.
        temperatures: Temperatures of the requests, in turn.
        max_requests: Most requests.
        max_tokens: Most tokens of all requests, prompts and answers.
        max_answer_tokens: Most tokens of one answer.
        max_seconds: Most seconds for all requests.
        request_seconds: Most seconds for one request.
        max_cost: Most that all requests may cost, in the currency of the prices; None for no limit.
        input_price: Price of a million tokens of the prompt; None if it is not known.
        output_price: Price of a million tokens of an answer.
        audit_file: File to which a line for each request is appended; None for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    url: str
    model: str = Field(min_length=1, max_length=200)
    key_file: Path | None = None
    key_variable: str = ""
    samples: int = Field(default=4, ge=1, le=64)
    temperatures: tuple[Temperature, ...] = Field(default=(0.2, 0.6, 1.0), min_length=1)
    max_requests: int = Field(default=6, ge=1)
    max_tokens: int = Field(default=100_000, ge=1)
    max_answer_tokens: int = Field(default=2048, ge=16)
    max_seconds: float = Field(default=300.0, gt=0.0)
    request_seconds: float = Field(default=60.0, gt=0.0)
    max_cost: float | None = Field(default=None, gt=0.0)
    input_price: float | None = Field(default=None, ge=0.0)
    output_price: float | None = Field(default=None, ge=0.0)
    audit_file: Path | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be the base URL of an endpoint: http://127.0.0.1:8080/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError("must not contain a key: put it into key_file or key_variable")
        return url

    @model_validator(mode="after")
    def _check_prices(self) -> LLMOptions:
        if self.max_cost is not None and None in (self.input_price, self.output_price):
            raise ValueError("max_cost needs input_price and output_price, per million tokens")
        return self

    @property
    def host(self) -> str:
        """Host and port of the endpoint."""
        return urlsplit(self.url).netloc

    def budget(self) -> str:
        """Return what may be spent, in one line."""
        cost = "" if self.max_cost is None else f", a cost of {self.max_cost:g}"
        return (
            f"at most {self.max_requests} requests, {self.max_tokens} tokens, "
            f"{self.max_seconds:g} s{cost}"
        )
