"""Types of settings that several packages declare, and the mark of a hot setting."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from infrastructure.agent_contract.agent import AGENT_NAME

_Type = TypeVar("_Type")
_HOT = "hot"
_MODULE_NAME = re.compile(r"(part:)?[\w.*?\[\]!-]+")


def hot_fields(model: type[BaseModel]) -> tuple[str, ...]:
    """Names of the fields of *model* that are declared `Hot`."""
    return tuple(name for name, field in model.model_fields.items() if _HOT in field.metadata)


def _check_agent_names(text: str) -> str:
    for name in filter(None, map(str.strip, text.split(","))):
        if not AGENT_NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is not an agent name; separate names by commas")
    return text


def _check_module_names(text: str) -> str:
    for name in filter(None, map(str.strip, text.split(","))):
        if not _MODULE_NAME.fullmatch(name):
            raise ValueError(
                f"{name[:40]!r} is not a module name or pattern, such as encoder.rnn or *.norm; "
                "separate names by commas"
            )
    return text


def _empty_to_none(value: object) -> object:
    return None if value == "" else value


Hot: TypeAlias = Annotated[_Type, _HOT]  # a running daemon applies a change of it
OrEmpty: TypeAlias = Annotated[_Type | None, BeforeValidator(_empty_to_none)]
Seconds: TypeAlias = Annotated[float, Field(ge=0.001, le=366 * 86400.0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
CountOrZero: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]
ModuleNames: TypeAlias = Annotated[str, AfterValidator(_check_module_names)]
AgentNames: TypeAlias = Annotated[str, AfterValidator(_check_agent_names)]
