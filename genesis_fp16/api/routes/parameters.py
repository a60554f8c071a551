"""Parameters that several endpoints share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import Depends, Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from genesis_fp16.api.access import Caller, caller_of
from genesis_fp16.api.readings import Readings
from genesis_fp16.domain.reason import LONGEST_REASON, ReasonMissingError, one_line
from genesis_fp16.runs.run_folder import RUN_ID
from infrastructure.agent_contract.agent import AGENT_NAME


def readings_of(request: Request) -> Readings:
    """What the application of *request* reads from.

    Raises:
        StoreError: The database was moved or replaced since it was opened.
    """
    readings = request.app.state.readings
    assert isinstance(readings, Readings)  # noqa: S101  # set by make_app
    readings.store.verify()
    return readings


ReadingsHere: TypeAlias = Annotated[Readings, Depends(readings_of)]
CallerHere: TypeAlias = Annotated[Caller, Depends(caller_of)]
AgentName: TypeAlias = Annotated[
    str, Path(pattern=f"^{AGENT_NAME.pattern}$", description="Name of an agent.")
]
RunId: TypeAlias = Annotated[
    str, Path(pattern=f"^{RUN_ID.pattern}$", description="Identity of a run.")
]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=500, description="Most entries to return.")]


def _not_blank(reason: str) -> str:
    try:
        one_line(reason)
    except ReasonMissingError as error:
        raise PydanticCustomError("reason_missing", "{error}", {"error": str(error)}) from error
    return reason


Reason: TypeAlias = Annotated[
    str,
    Field(
        max_length=LONGEST_REASON,
        description="Why; recorded in the audit trail.",
        json_schema_extra={"minLength": 1, "pattern": r"\S"},
    ),
    AfterValidator(_not_blank),
]


class Change(BaseModel):
    """A change that the audit trail explains."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason


class Cleared(BaseModel):
    """Whether something was in force that has ended now."""

    cleared: bool
