"""Types of settings that several rooms declare, and what an empty text means."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from infrastructure.agent_contract.agent import AGENT_NAME


def _parse_names(text: str) -> str:
    for name in filter(None, map(str.strip, text.split(","))):
        if not AGENT_NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is no name of an agent: separate names by commas")
    return text


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


EMPTY_IS_NONE = BeforeValidator(_empty_is_none)
Seconds: TypeAlias = Annotated[float, Field(ge=0.001, le=366 * 86400.0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
CountOrNone: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]
AgentNames: TypeAlias = Annotated[str, AfterValidator(_parse_names)]
